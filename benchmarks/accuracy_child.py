"""Runs one training script, when the device is free; with EXPORT, times its steps and exports two profiles of it.

    python accuracy_child.py [--lock FILE] [--export FOLDER --trace-steps N --size FIELDS] SCRIPT ARGUMENTS

torch is imported before the device is asked for, so that the next program gets ready while one runs. What is exported
is what people export: torch.profiler with wait, warmup and active steps, once with shapes and stacks and once with
neither. The script is the one of the sick bay, unchanged; it ends once all is taken.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import gc
import gzip
import json
import os
import runpy
import shutil
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from diagnose.collect.inside.hooks.inductor_cache_workaround import refuse

WARM_UP = 8
TIMED = 20
"""Steps; whatever happens every so often in the programs has a period that divides this."""
PROFILES = {"stack": {"record_shapes": True, "with_stack": True}, "bare": {"record_shapes": False, "with_stack": False}}


class Enough(BaseException):
    """Ends the script; no script catches it."""


def main() -> None:
    """Wait for the device, run the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--export", type=Path)
    parser.add_argument("--trace-steps", type=int, default=4)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    import torch

    refuse(torch)  # programs recorded one after the other share a cache of what is compiled
    lock = wait_for(options.lock) if options.lock else None
    started = time.monotonic()
    steps = Steps(torch, options.export, options.trace_steps) if options.export else None
    if steps:
        follow(torch, steps.ended)
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    try:
        runpy.run_path(str(options.script), run_name="__main__")
    except Enough:
        gc.collect()  # loaders' workers
    if steps:
        steps.write(time.monotonic() - started)
    if lock is not None:
        os.close(lock)
    if steps:
        steps.pack()
        sys.stdout.flush()
        os._exit(0)  # the process group of several ranks, left in the middle, would be waited for


def wait_for(path: Path) -> int | None:
    """Take the lock of the device; it ends with this process, and loaders' workers do not inherit it.

    Of several ranks the first takes it for its job, and the others wait until it has.
    """
    job = os.environ.get("TORCHELASTIC_RUN_ID", "").encode()
    if os.environ.get("RANK", "0") != "0":
        while not path.exists() or path.read_bytes() != job:
            time.sleep(0.02)
        return None
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    fcntl.lockf(handle, fcntl.LOCK_EX)
    os.ftruncate(handle, 0)
    os.pwrite(handle, job, 0)
    return handle


class Steps:
    """Warm up, time, profile with shapes and stacks, profile with neither, end."""

    def __init__(self, torch: Any, folder: Path, trace_steps: int) -> None:
        self._torch = torch
        self._folder = folder
        self._trace_steps = trace_steps
        self._count = 0
        self._began_ns = 0
        self._step_ns = 0
        self._profile: Any = None
        self._left = list(PROFILES)
        self._exported: list[Path] = []

    def ended(self) -> None:
        """A step of the script ended; called on its training thread."""
        self._count += 1
        if self._count == WARM_UP:
            self._began_ns = self._now_ns()
        elif self._count == WARM_UP + TIMED:
            self._step_ns = (self._now_ns() - self._began_ns) // TIMED
            self._next_profile()
        elif self._profile is not None:
            self._profile.step()

    def write(self, seconds: float) -> None:
        """Write the timings. Raises SystemExit where the script ended too early."""
        if self._left or self._profile is not None:
            raise SystemExit(f"the script ended after {self._count} steps, before all was taken")
        record = {"step_ns": self._step_ns, "timed_steps": TIMED, "seconds": round(seconds, 2)}
        self._path("timing").with_suffix(".json").write_text(json.dumps(record))

    def pack(self) -> None:
        """Compress what was exported."""
        for path in self._exported:
            with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb", compresslevel=6) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            path.unlink()

    def _now_ns(self) -> int:
        if self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        return time.perf_counter_ns()

    def _next_profile(self) -> None:
        if not self._left:
            raise Enough
        profiler = self._torch.profiler
        name = self._left.pop(0)
        activities = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._profile = profiler.profile(
            activities=activities,
            schedule=profiler.schedule(wait=1, warmup=1, active=self._trace_steps, repeat=1),
            on_trace_ready=functools.partial(self._ready, name),
            **PROFILES[name],
        )
        self._profile.start()

    def _ready(self, name: str, profile: Any) -> None:
        path = self._path(name).with_suffix(".json")
        profile.export_chrome_trace(str(path))
        self._exported.append(path)
        self._profile = None
        self._next_profile()

    def _path(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"rank{os.environ.get('RANK', '0')}"


def follow(torch: Any, ended: Callable[[], None]) -> None:
    """Call `ended` when an optimizer has stepped, outside its own range in the profile."""
    optimizer = torch.optim.Optimizer
    hook = optimizer.profile_hook_step

    def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
        inner = hook(step)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            out = inner(*args, **kwargs)
            ended()
            return out

        # The frame stands in the profile between the script's and torch's; it must not pass for the user's.
        named = wrapper.__code__.replace(co_filename=sys.modules[optimizer.__module__].__file__ or "torch")
        same: Any = types.FunctionType(named, globals(), "wrapper", None, wrapper.__closure__)
        functools.update_wrapper(same, step)
        del same.__wrapped__  # torch.compile puts what is wrapped back in place of the wrapper
        hooked_step: Callable[..., Any] = same
        return hooked_step

    optimizer.profile_hook_step = staticmethod(hooked)


if __name__ == "__main__":
    main()
