"""The events that a mode can react to: torch was imported, a step ended, the process ends; and the rank of this
process.

A process that loads torch is not yet one that trains: launchers, DataLoader workers and other children load it too.
The process that takes the first training step of a rank claims the rank's folder, by creating its file `claim`; from
then on it is the watched one, and callbacks run. The others stay passive for good.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from ..records import CLAIM, FACTS, UNWATCHED
from . import transparency
from .guard import contained, failures, guarded
from .hooks.devices_in_use import in_use
from .hooks.inductor_cache_workaround import ended_by_it
from .hooks.out_of_memory import ended_for_want_of_memory
from .hooks.step_hooks import StepHooks
from .imports import after_import
from .size_limit import unsignalled

_CHILD_SIGN = "multiprocessing"


class ProcessHooks:
    """One per process. Callbacks run in the order they were given; an exception in one is noted and swallowed."""

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.recipe = recipe
        self.steps = StepHooks(self._step_ended)
        self.torch: ModuleType | None = None
        self.claimed = False
        self.exiting = False
        """The interpreter exits: what is claimed now starts no thread, for which there may be no memory left."""
        self.is_child = any(_CHILD_SIGN in word for word in sys.orig_argv[1:4])
        self._root = Path(str(recipe["folder"]))
        self.pid = os.getpid()
        self._passive = False
        self._rank: int | None = None
        self._devices: list[int] = []
        self._index = 0
        self._synchronize: Callable[[int], None] = lambda _ordinal: None
        self._beneath: list[Callable[[ModuleType], object]] = []
        self._on_claim: list[Callable[[], object]] = []
        self._on_step: list[Callable[[int], object]] = []
        self._on_restart: list[Callable[[], object]] = []
        self._on_exit: list[Callable[[], object]] = []
        after_import("torch", self._torch_arrived)
        os.register_at_fork(after_in_child=contained(self._forked))
        self._at_exit = contained(self._exit)
        atexit.register(self._at_exit)

    def on_torch(self, callback: Callable[[ModuleType], None]) -> None:
        """Call `callback(torch)` once torch has been imported; at once if it has."""
        after_import("torch", callback)

    def beneath_steps(self, callback: Callable[[ModuleType], None]) -> None:
        """Call `callback(torch)` right before the hooks that count steps are installed: they stand around what it puts
        in the place of torch's functions. Before torch is imported only."""
        self._beneath.append(guarded(callback))

    def on_claim(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, on the training thread, when this process turned out to be the one that trains."""
        self._on_claim.append(guarded(callback))

    def on_step(self, callback: Callable[[int], object]) -> None:
        """Call `callback(i)` on the training thread right after step `i` (0-based) ended, ranges closed."""
        self._on_step.append(guarded(callback))

    def on_restart(self, callback: Callable[[], object]) -> None:
        """Call `callback` when steps turn out to be something else than was counted so far; they restart at 0."""
        self._on_restart.append(guarded(callback))

    def on_exit(self, callback: Callable[[], object]) -> None:
        """Call `callback` once at the interpreter's exit (normal, exception, SystemExit); only if claimed."""
        self._on_exit.append(guarded(callback))

    def input_ns(self) -> int:
        """Nanoseconds so far that the training thread spent inside a loader's `__next__`."""
        return self.steps.input_ns

    def end_ns(self) -> int:
        """Return when the last step ended."""
        return self.steps.end_ns

    @property
    def rank(self) -> int:
        """This process's rank: 0 where nothing says otherwise."""
        if self._rank is not None:
            return self._rank
        distributed = self.distributed
        return int(distributed.get_rank()) if distributed else _integer("RANK", 0)

    @property
    def world_size(self) -> int:
        """How many ranks there are: 1 where nothing says otherwise."""
        distributed = self.distributed
        return int(distributed.get_world_size()) if distributed else _integer("WORLD_SIZE", 1)

    @property
    def folder(self) -> Path:
        """`rank<k>/` of the run folder; it exists once the process has claimed it."""
        return self._root / f"rank{self.rank}"

    @property
    def uses_cuda(self) -> bool:
        """Whether the program has touched a CUDA (or ROCm) device in this process."""
        return self.torch is not None and bool(self.torch.cuda.is_initialized())

    def synchronize(self) -> None:
        """Wait for the devices in use, if any is."""
        if self.torch is not None and self.uses_cuda:
            for ordinal in self._devices or [self.torch.cuda.current_device()]:
                self._synchronize(ordinal)

    def claim(self) -> bool:
        """Become the watched process of this rank; False where another one is, or where this is not a trainer."""
        if self.claimed or self._passive:
            return self.claimed
        self._passive = True
        if self._is_worker():
            return False
        self._rank = self.rank
        self._devices = in_use(self.torch) if self.torch is not None else []
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(self.folder / CLAIM, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        os.write(handle, json.dumps({"pid": self.pid, "device": self._device()}).encode())
        os.close(handle)
        self._passive, self.claimed = False, True
        self.steps.thread = threading.get_ident()
        # Exit hooks run last in, first out: from here on ours comes before those of whatever torch loaded so far.
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        with self.at_its_device():
            for callback in self._on_claim:
                callback()
        return True

    def _step_ended(self, restarted: bool) -> None:
        if not self.claimed and (self._passive or not guarded(self.claim)()):
            self.steps.passive = True
            return
        with self.at_its_device():
            if restarted:
                self._index = 0
                for restart in self._on_restart:
                    restart()
            index, self._index = self._index, self._index + 1
            for callback in self._on_step:
                callback(index)

    def at_its_device(self) -> AbstractContextManager[object]:
        """Make the device that the program trains on this thread's, so that what is read is read of that one."""
        if self.torch is None or not self._devices:
            return nullcontext()
        device: AbstractContextManager[object] = self.torch.cuda.device(self._devices[0])
        return device

    def _torch_arrived(self, torch: ModuleType) -> None:
        self.torch = torch
        self._synchronize = torch.cuda.synchronize
        guarded(transparency.arrived)(torch)
        for callback in self._beneath:
            callback(torch)
        self.steps.install(torch)

    def _is_worker(self) -> bool:
        """Whether this process works for another: a loader's worker, or a child that is no rank of its own."""
        data = sys.modules.get("torch.utils.data")
        if data is not None and data.get_worker_info() is not None:
            return True
        return self.is_child and self.distributed is None

    @property
    def distributed(self) -> Any:
        """`torch.distributed` once the job's ranks are connected, else None."""
        distributed = getattr(self.torch, "distributed", None)
        ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
        return distributed if ready else None

    def _device(self) -> dict[str, Any] | None:
        if self.torch is None or not self._devices:
            return None
        ordinal = self._devices[0]
        uuid = getattr(self.torch.cuda.get_device_properties(ordinal), "uuid", None)
        return {"ordinal": ordinal, "uuid": None if uuid is None else str(uuid)}

    def _forked(self) -> None:
        self.is_child = True
        if self.claimed:
            self.claimed, self._passive, self.steps.passive = False, True, True

    def _exit(self) -> None:
        if os.getpid() != self.pid:
            return
        self.exiting = True
        known = guarded(ended_for_want_of_memory)() or guarded(ended_by_it)()
        if not self.claimed and not self._passive and (self.steps.saw_training or known):
            guarded(self.claim)()
        if not self.claimed:
            guarded(self._say_why_not)()
            return
        self.claimed, self._passive, self.steps.passive = False, True, True
        for callback in self._on_exit:
            callback()
        guarded(self._say_why_not)()

    def _say_why_not(self) -> None:
        """Leave a word of what failed where the rank's own files do not have it."""
        told = guarded(lambda: (self.folder / FACTS).exists())()
        if failures and not told:
            with unsignalled():
                (self._root / UNWATCHED).write_text(json.dumps(failures))


def _integer(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else otherwise
