"""Traces a few steps whenever the run folder asks for it, into a folder of its own that reads as that of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...records import FACTS, REQUEST, TRACE, WINDOW
from ..process.process_facts import job_facts, process_facts, ranks_on_host
from ..process_hooks import ProcessHooks
from ..size_limit import unsignalled
from ..source_ownership import Ownership
from ..writer import Writer
from .counted_window import CountedWindow
from .profiler_window import Window


class RequestedWindow:
    """`look` is called now and then, on any thread; `step_ended` on the training thread."""

    def __init__(self, hub: ProcessHooks, ownership: Ownership, on_terminated: Callable[[], object]) -> None:
        self._hub = hub
        self._ownership = ownership
        self._path = hub.folder.parent / REQUEST
        self._seen_ns = 0
        self._request: dict[str, Any] | None = None
        self._window = CountedWindow(hub, on_terminated)

    @property
    def busy(self) -> bool:
        """Whether steps take longer than usual, for they are being traced or their trace is being written."""
        return self._window.is_open or self._window.is_being_saved

    def look(self) -> None:
        """Take up a request that is new, unless one is being carried out."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:
            return
        if changed_ns == self._seen_ns or self.busy:
            return
        self._seen_ns = changed_ns
        request = json.loads(self._path.read_text())
        if self._hub.rank in request["ranks"]:
            self._request = request

    def step_ended(self, index: int) -> None:
        """Open, mark or close the window after step `index`."""
        if self._request is None:
            return
        try:
            self._advance(index, self._request)
        except Exception:
            self._request = None
            self._window.abandon()
            raise

    def close(self) -> None:
        """Stop what is open and save it; wait for a trace that is being written."""
        if self._window.is_open:
            self._stop()
        self._window.wait()

    def _advance(self, index: int, request: dict[str, Any]) -> None:
        window = self._window
        if not window.is_open:
            window.disarm()  # the program's own profiler may have ended a window
            if index < request["step"] or Window.other_is_recording(self._hub.torch):
                return
            window.record = {}
            window.open()
            return
        if not window.record:  # the step in which the profiler started is not counted
            window.begin(index)
        elif window.count() >= request["steps"]:
            self._stop()
            return
        window.mark_step(index + 1)

    def _stop(self) -> None:
        request, self._request = self._request, None
        self._window.stop()
        if request is not None and self._window.record.get("steps"):
            folder = Path(request["folder"]) / f"rank{self._hub.rank}"
            self._window.save_beside(lambda: self._save(folder))

    def _save(self, folder: Path) -> None:
        hub, writer = self._hub, Writer(folder)
        with unsignalled():
            folder.mkdir(parents=True, exist_ok=True)
            facts = process_facts(hub.torch) | {
                "rank": hub.rank,
                "world_size": hub.world_size,
                "local_world_size": ranks_on_host(hub.world_size),
                "pid": hub.pid,
                "job": job_facts(),
                "steps_found_by": hub.steps.found_by,
                "owned_roots": self._ownership.roots,
            }
            writer.write_json(FACTS, facts)
            self._window.save(folder / TRACE)
            # Last: who sees it finds the rest complete.
            writer.write_json(WINDOW, {**self._window.record, "steady": "traced because the time of a step changed"})
