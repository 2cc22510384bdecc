"""Stops the workers of a loader for as long as training stands still for a profiler's sake.

A profiler takes seconds to begin, the first time in a process. Workers that went on would fill their queues meanwhile,
and then rest: the steps of the window would find batches that the loader cannot deliver in the long run, and cores that
its workers leave them at no other time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .steps import StepHooks


@contextlib.contextmanager
def workers_held(steps: StepHooks) -> Iterator[None]:
    """Stop the workers of the loader that gave training its last batch, and let them go on afterwards."""
    loader: Any = steps.loader() if steps.loader is not None else None
    # Held until the end: a loader whose last reference went meanwhile would wait for workers that stand still.
    workers = getattr(loader, "_workers", ())
    pids = [worker.pid for worker in workers if getattr(worker, "pid", None) is not None]
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
