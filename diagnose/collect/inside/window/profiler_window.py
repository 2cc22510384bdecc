"""One torch.profiler window: opened and closed between steps, saved as a Chrome trace.

While it is open, the program may start a profiler of its own; torch allows one at a time, so ours gives way: it is
stopped first, and what it has recorded is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from ..forked_exit import let_children_leave
from ..guard import guarded
from ..transparency import unseen

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_TEARDOWN = "TEARDOWN_CUPTI"
_LEAST_CUDA = (12, 6)
"""Before it, CUPTI that comes back beside CUDA graphs may crash: torch/profiler/profiler.py has it so."""
_COMPRESSION = 4  # level 9 takes four times as long for a tenth less
_GZIP = 31  # zlib's largest window, in the container of gzip
_CHUNK_BYTES = 1 << 20


class Window:
    """`open` and `stop` belong on the training thread; `save` may run on another one."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._profile: Any = None
        self._step: Any = None
        self._take_back: Callable[[], None] = _nothing
        self.is_open = False
        self.displaced = False
        """Whether the program started its own profiler, which ended this window."""

    def open(self, torch: ModuleType) -> None:
        """Begin to record CPU operators with shapes, and the device if one is in use.

        Raises RuntimeError where another profiler is recording.
        """
        self._torch = torch
        if self.other_is_recording(torch):
            raise RuntimeError("another profiler is recording")
        activity = self._torch.profiler.ProfilerActivity
        activities = [activity.CPU]
        if self._torch.cuda.is_initialized() and activity.CUDA in self._torch.profiler.supported_activities():
            activities.append(activity.CUDA)
            let_cupti_leave(self._torch.version.cuda)
        # `acc_events` changes nothing within one cycle, but without it torch 2.11 warns on the program's stderr. (To
        # filter the warning would make Python forget which of the program's own it has shown.)
        self._profile = self._torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)
        let_children_leave()
        with _quiet_kineto():
            self._profile.start()
        # Once it records, nothing warns; else `stop` would make an object of each event, on the training thread.
        self._profile.profiler.acc_events = False
        self.is_open = True
        self._give_way()

    @staticmethod
    def other_is_recording(torch: Any) -> bool:
        """Whether a profiler is on, on this thread or (Kineto is one for the process) on any."""
        enabled = getattr(torch._C._autograd, "_profiler_enabled", None)
        return bool(torch.autograd.profiler._is_profiler_enabled or (enabled is not None and enabled()))

    def mark_step(self, index: int | None) -> None:
        """Draw step `index` from here to the next mark; None ends the last one."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if index is not None and self.is_open:
            self._step = self._torch.profiler.record_function(f"ProfilerStep#{index}")
            self._step.__enter__()

    def stop(self) -> None:
        """End recording; waits for the device. Does nothing where it has ended already."""
        if not self.is_open:
            return
        self.is_open = False
        try:
            self._take_back()
            self.mark_step(None)
        finally:
            self._profile.stop()

    def save(self, path: Path) -> None:
        """Write what was recorded to `path` (gzip), whole or not at all.

        Kineto holds the interpreter while its file is open, so the program cannot close that file and be given its
        descriptor for one of its own.
        """
        plain = path.with_name(f".{path.name}.{os.getpid()}.json")
        packed = plain.with_suffix(".tmp")
        try:
            self._profile.export_chrome_trace(str(plain))
            _compress(plain, packed)
            packed.replace(path)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
            # torch's profile refers to itself: what was recorded would stay until the next whole garbage collection.
            self._profile.profiler = None
            self._profile = None
            guarded(_give_back_memory)()

    def close(self, path: Path) -> None:
        """Stop and save."""
        self.stop()
        self.save(path)

    def _give_way(self) -> None:
        profiler = self._torch.autograd.profiler.profile
        prepare = profiler._prepare_trace

        @unseen
        def prepare_theirs(theirs: Any) -> Any:
            if self.is_open:
                self.displaced = True
                self.stop()
            return prepare(theirs)

        def restore() -> None:
            if profiler._prepare_trace is prepare_theirs:
                profiler._prepare_trace = prepare

        profiler._prepare_trace = prepare_theirs
        self._take_back = restore


def let_cupti_leave(cuda: str | None) -> None:
    """Have Kineto detach CUPTI when a window ends; `cuda` is the version that torch was built for.

    Attached, it makes every launch slower for the rest of the run: by 67 % of a step of 1,460 small kernels. Kineto
    reads the variable of the process; `os.environ`, which the program may print or pass on, stays as it is.
    """
    numbers = tuple(int(part) for part in (cuda or "").split(".")[:2] if part.isdigit())
    if numbers >= _LEAST_CUDA and _TEARDOWN not in os.environ:
        os.putenv(_TEARDOWN, "1")


def _compress(plain: Path, packed: Path) -> None:
    """Write `plain` to `packed` (gzip). No descriptor is open while zlib computes and the program runs: the program
    may close descriptors that are not its own, and then gets their numbers.
    """
    compressor = zlib.compressobj(_COMPRESSION, wbits=_GZIP)
    for begin in range(0, plain.stat().st_size, _CHUNK_BYTES):
        with plain.open("rb") as source:
            source.seek(begin)
            chunk = source.read(_CHUNK_BYTES)
        data = compressor.compress(chunk)
        with packed.open("ab") as target:
            target.write(data)
    with packed.open("ab") as target:
        target.write(compressor.flush())


def _give_back_memory() -> None:
    """Return to the system what the C library keeps of freed memory, where it is glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep Kineto, which reads its log level when it first starts, from writing on the program's stderr."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


def _nothing() -> None:
    """There is nothing to take back."""
