"""Traces a few steps whenever the run folder asks for it, into a folder of its own that reads as that of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...records import FACTS, REQUEST, TRACE, WINDOW
from ..guard import guarded
from ..hooks.paused_loader_workers import PausedLoaderWorkers
from ..process.process_facts import job_facts, process_facts, ranks_on_host
from ..process.termination import Termination
from ..process_hooks import ProcessHooks
from ..size_limit import unsignalled
from ..source_ownership import Ownership
from ..unlisted_thread import UnlistedThread
from ..writer import Writer
from .profiler_window import Window


class RequestedWindow:
    """`look` is called now and then, on any thread; `step_ended` on the training thread."""

    def __init__(self, hub: ProcessHooks, ownership: Ownership, on_terminated: Callable[[], object]) -> None:
        self._hub = hub
        self._ownership = ownership
        self._path = hub.folder.parent / REQUEST
        self._seen_ns = 0
        self._request: dict[str, Any] | None = None
        self._window = Window()
        self._workers = PausedLoaderWorkers(hub.steps)
        self._termination = Termination(on_terminated)
        self._record: dict[str, Any] = {}
        self._exporter: UnlistedThread | None = None

    @property
    def busy(self) -> bool:
        """Whether steps take longer than usual, for they are being traced or their trace is being written."""
        return self._window.is_open or (self._exporter is not None and self._exporter.is_alive())

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
            guarded(self._window.stop)()
            self._termination.disarm()
            raise

    def close(self) -> None:
        """Stop what is open and save it; wait for a trace that is being written."""
        if self._window.is_open:
            self._stop()
        if self._exporter is not None:
            self._exporter.join(timeout=60)

    def _advance(self, index: int, request: dict[str, Any]) -> None:
        end_ns = self._hub.end_ns()
        if not self._window.is_open:
            self._termination.disarm()  # the program's own profiler may have ended a window
            if index < request["step"] or Window.other_is_recording(self._hub.torch):
                return
            self._record = {}
            self._termination.arm()
            with self._workers.still():
                self._window.open(self._hub.torch)  # type: ignore[arg-type]  # a step has ended: torch is there
            return
        if not self._record:  # the step in which the profiler started is not counted
            self._record = {"start_ns": end_ns, "end_ns": end_ns, "first_step": index + 1, "steps": 0}
        else:
            self._record["end_ns"] = end_ns
            self._record["steps"] += 1
        if self._record["steps"] < request["steps"]:
            self._window.mark_step(index + 1)
        else:
            self._stop()

    def _stop(self) -> None:
        request, self._request = self._request, None
        with self._workers.still():
            self._window.stop()
        self._termination.disarm()
        if request is not None and self._record.get("steps"):
            folder = Path(request["folder"]) / f"rank{self._hub.rank}"
            # Not on the training thread: writing a window takes longer than a step.
            self._exporter = UnlistedThread(lambda: guarded(self._save)(folder))
            self._exporter.start()

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
            writer.write_json(WINDOW, {**self._record, "steady": "traced because the time of a step changed"})
