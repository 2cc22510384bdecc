"""A profiler window of whole steps: opened, marked and stopped at ends of steps, and saved off the training thread.

A loader's workers stand still while it opens and stops, and what ends the process saves it first.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..guard import guarded
from ..hooks.paused_loader_workers import PausedLoaderWorkers
from ..process.termination import Termination
from ..process_hooks import ProcessHooks
from ..unlisted_thread import UnlistedThread
from .profiler_window import Window


class CountedWindow:
    """`begin` and `count` follow each other at ends of steps, after `open` and before `stop`."""

    def __init__(self, hub: ProcessHooks, on_terminated: Callable[[], object]) -> None:
        self.record: dict[str, Any] = {}
        """`start_ns` and `end_ns` since the epoch, `first_step`, and the number of whole `steps` between them."""
        self._hub = hub
        self._window = Window()
        self._workers = PausedLoaderWorkers(hub.steps)
        self._termination = Termination(on_terminated)
        self._exporter: UnlistedThread | None = None

    @property
    def is_open(self) -> bool:
        """Whether the profiler records."""
        return self._window.is_open

    @property
    def displaced(self) -> bool:
        """Whether the program's own profiler ended the window."""
        return self._window.displaced

    @property
    def is_being_saved(self) -> bool:
        """Whether the trace is being written."""
        return self._exporter is not None and self._exporter.is_alive()

    def open(self) -> None:
        """Begin to record; the step that runs now is not counted."""
        self._termination.arm()
        with self._workers.still():
            self._window.open(self._hub.torch)  # type: ignore[arg-type]  # a step has ended: torch is there

    def begin(self, index: int) -> None:
        """Count from the end of step `index` on."""
        now = self._hub.end_ns()
        self.record = {"start_ns": now, "end_ns": now, "first_step": index + 1, "steps": 0}

    def count(self) -> int:
        """Count the step that has just ended; returns how many there are."""
        self.record["end_ns"] = self._hub.end_ns()
        self.record["steps"] += 1
        return int(self.record["steps"])

    def mark_step(self, index: int | None) -> None:
        """Draw step `index` from here to the next mark; None ends the last one."""
        self._window.mark_step(index)

    def stop(self) -> None:
        """End recording, if it has not ended."""
        with self._workers.still():
            self._window.stop()
        self.disarm()

    def disarm(self) -> None:
        """Leave signals to the program again, as after a window that its own profiler has ended."""
        self._termination.disarm()

    def abandon(self) -> None:
        """End all that a failure may have left on."""
        guarded(self._workers.release)()
        if self._window.is_open:
            guarded(self._window.stop)()
        guarded(self._termination.disarm)()

    def save(self, path: Path) -> None:
        """Write the trace to `path`."""
        self._window.save(path)

    def save_beside(self, save: Callable[[], object]) -> None:
        """Call `save` on another thread: writing a window takes longer than a step."""
        self._exporter = UnlistedThread(guarded(save))
        self._exporter.start()

    def wait(self) -> None:
        """Wait for a trace that is being written, a minute at most."""
        if self._exporter is not None:
            self._exporter.join(timeout=60)
