"""Stops the workers of a loader for as long as training stands still for a profiler's sake.

A profiler takes seconds to begin, the first time in a process. Workers that went on would fill their queues meanwhile,
and then rest: the steps of the window would find batches that the loader cannot deliver in the long run, and cores that
its workers leave them at no other time.

Where the process is killed meanwhile, nothing here lets them go on: whoever started it does (`processes.let_go_on`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .step_hooks import StepHooks


class PausedLoaderWorkers:
    """The workers of the loader that gave training its last batch."""

    def __init__(self, steps: StepHooks) -> None:
        self._steps = steps
        self._held: list[Any] = []

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Stop them, and let them go on afterwards."""
        loader: Any = self._steps.loader() if self._steps.loader is not None else None
        # `loader` refers to it until the end: else it might end meanwhile, and wait for workers that stand still.
        self._held = [one for one in getattr(loader, "_workers", ()) if _is_ours(one)]
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Let them go on, if they stand still: also where a signal ends the process before it gets any further."""
        self._signal(signal.SIGCONT)
        self._held = []

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._held:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.pid, number)


def _is_ours(worker: Any) -> bool:
    """Whether a process runs that this one has started: the number of another may be somebody else's by now."""
    with contextlib.suppress(AssertionError, AttributeError, ValueError):  # a parent's; of another kind; closed
        return bool(worker.is_alive())
    return False
