"""Traces a few steady steps, once: when to begin, the window, and the search for waits after it.

    warming up → (room in the pass over the loader) → (agreeing with the other ranks) → lead-in step → traced steps
        → lead-out step → two steps under sync-debug, with the allocator's events → done

All of it is decided at the ends of steps on the training thread. A window does not begin where it would hold the end of
a pass, once there was one and as far as passes are long enough: that step is longer than the others, and counted among
few it would weigh far more than it costs. The lead-in step is recorded but not counted: it takes the profiler's own
start, and a device that the host runs ahead of needs the end of the step before the first. The lead-out step is not
counted either: it is slower than the others, because the program's lines are followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...records import CLOSING, LINES, SYNCS, TRACE
from ...traced_ranks import SOME, is_traced
from ..guard import guarded, note
from ..hooks.loader_pass import LoaderPass
from ..hooks.loader_stock import stock_of
from ..hooks.sites import Sites
from ..probes.allocations import Allocations
from ..probes.line_log import LineLog
from ..probes.syncs import SyncWatch
from ..process_hooks import ProcessHooks
from ..size_limit import unsignalled
from ..writer import encode
from .counted_window import CountedWindow
from .pause_bound import MOST_PAUSE_NS, OperatorCount, steps_within
from .profiler_window import Window
from .steadiness import MOST_NS, MOST_STEPS, Steadiness
from .trace_agreement import AHEAD, TraceAgreement

SYNC_STEPS = 2
_LED = 2
"""Steps of a window that are not counted: the lead-in and the lead-out."""
FORWARD = "forward"
"""The kind of site at which the program calls its model."""
SOURCE = "source"
"""The kind of site that names a file of the user's which the program has imported."""
_PATIENCE = 50
"""Steps that another rank waits for rank 0 to say so, once its own are steady."""
_TRIES = 200
"""Steps to wait for a profiler of the program's own to end."""

_Phase = Callable[[int], None]


class Tracing:
    """Recipe: `steps` to trace, `warmup` steps at least, `most_warmup_steps`, `most_warmup_ns`."""

    def __init__(
        self,
        recipe: dict[str, Any],
        hub: ProcessHooks,
        sites: Sites,
        allocations: Allocations,
        on_terminated: Callable[[], object],
    ) -> None:
        self._recipe = recipe
        self._hub = hub
        self._sites = sites
        self._allocations = allocations
        self._ownership = sites.ownership
        self._asked = max(1, int(recipe.get("steps", 4)))
        self._wanted = self._asked
        """Steps to trace: fewer than asked for where they would hold up training for too long, as many on all ranks,
        for one that closed its window earlier would hold up the others."""
        self._operators = OperatorCount()
        self._pass = LoaderPass(hub.steps)
        self._window = CountedWindow(hub, on_terminated)
        self._lines = LineLog(self._ownership)
        self._tries = 0
        self._open_at: int | None = None
        self._announcement: TraceAgreement | None = None
        self._left_out = False
        self._syncs: SyncWatch | None = None
        self._steps_after = 0
        self._saved = False
        self.restart()

    def restart(self) -> None:
        """Wait for steady steps from the beginning (unless the window has been)."""
        self._lines.end(whole=False)
        self._lines = LineLog(self._ownership)
        self.steady = Steadiness(
            warmup=int(self._recipe.get("warmup", 10)),
            most_steps=int(self._recipe.get("most_warmup_steps", MOST_STEPS)),
            most_ns=int(self._recipe.get("most_warmup_ns", MOST_NS)),
            input_ns=self._hub.input_ns,
            stock=lambda: stock_of(self._hub.steps),
        )
        self._phase: _Phase = self._done if self._saved else self._warming_up

    def step_ended(self, index: int) -> None:
        """Right after step `index`, on the training thread."""
        try:
            self._operators.step_ended(self._hub.torch)
            self._pass.step_ended()
            self._phase(index)
        except Exception as error:  # noqa: BLE001 - see `guard`
            note(self.step_ended, error)
            self._abandon()

    def _abandon(self) -> None:
        """A phase has failed: nothing that it switched on may stay on while the program trains."""
        self._phase = self._done
        guarded(self._lines.end)(whole=False)
        guarded(self._window.abandon)()
        guarded(self._end_syncs)()
        guarded(self._allocations.end_history)()

    @property
    def finished(self) -> dict[str, Any] | None:
        """The record of the window, once trace and waits are on disk; None before, and where there is none."""
        if self._left_out:
            return {**self._window.record, "steady": "watched, and not traced: other ranks are"}
        if not self._saved or self._phase in (self._before_more, self._after_window):
            return None
        steady = self.steady.reason
        if self._window.displaced and self._window.record["steps"] < self._wanted:
            steady = f"{steady}; cut short by the program's own profiler"
        if self._wanted < self._asked:
            steady = f"{steady}; {self._asked - self._wanted} fewer than asked for, as each has many operators"
        return {**self._window.record, "steady": steady}

    def close(self) -> None:
        """Stop whatever is open and save it; on the training thread, or at the process's end."""
        guarded(self._lines.end)(whole=False)
        was_open = self._window.is_open
        guarded(self._window.abandon)()
        if was_open:
            guarded(self._save)()
        else:
            self._window.wait()
        self._phase = self._done
        guarded(self._end_syncs)()
        guarded(self._allocations.end_history)()

    # -- phases: called with the step that just ended -------------------------------------------------------------

    def _warming_up(self, index: int) -> None:
        steady = self.steady.step_ended(self._hub.end_ns())
        if self._hub.world_size == 1 or self._hub.rank == 0:
            if steady:
                self._wanted = self._steps_within()
                self._phase = self._awaiting_room
                self._awaiting_room(index)
        elif steady:
            self._open_at = index + _PATIENCE
            self._phase = self._agreed
        elif self._announced():
            self.steady.decide("opened together with rank 0, which found its steps steady")
            self._phase = self._agreed
            self._agreed(index)

    def _awaiting_room(self, index: int) -> None:
        alone = self._hub.world_size == 1
        if not self._pass.has_room(self._wanted + _LED + (0 if alone else AHEAD)):
            return
        if alone:
            self._open(index)
            return
        step_ns = self.steady.step_ns or self.steady.median_ns() or 0
        self._open_at = self._agreement.say(index, step_ns, self._wanted)
        self._phase = self._agreed

    def _agreed(self, index: int) -> None:
        if self._hub.rank != 0:
            self._announced()
        if self._open_at is not None and index >= self._open_at:
            self._open(index)

    def _announced(self) -> bool:
        heard = self._agreement.heard()
        if heard is None:
            return False
        self._open_at, self._wanted = heard
        return True

    def _steps_within(self) -> int:
        return steps_within(MOST_PAUSE_NS, self._operators.per_step, self._asked)

    @property
    def _agreement(self) -> TraceAgreement:
        if self._announcement is None:
            hub = self._hub
            self._announcement = TraceAgreement(hub.folder.parent, hub.distributed, hub.rank, hub.world_size)
        return self._announcement

    def _open(self, index: int) -> None:
        torch = self._hub.torch
        if torch is None:
            return
        if Window.other_is_recording(torch):
            self._tries += 1
            self._phase = self._open
            if self._tries >= _TRIES:
                self.steady.reason = "not traced: the program's own profiler was recording all the time"
                self._phase = self._done
            return
        self._phase = self._done  # unless all goes well
        self._window.begin(index)
        wanted = self._recipe.get("ranks", SOME)
        if not is_traced(wanted, self._hub.rank, self._hub.world_size, self._hub.folder.parent):
            self._left_out = True
            return
        self._window.open()
        self._phase = self._leading_in

    def _leading_in(self, index: int) -> None:
        self._window.begin(index)
        self._phase = self._tracing
        if self._window.is_open:
            self._window.mark_step(index + 1)
        else:
            self._finish()

    def _tracing(self, index: int) -> None:
        if self._window.is_open:
            steps = self._window.count()
            guarded(lambda: self._sites.trained_from(self._hub.steps.training_loader()))()
            if steps < self._wanted:
                self._window.mark_step(index + 1)
                return
            self._window.mark_step(None)
            if guarded(self._lines.begin)(self.steady.step_ns or 0):
                self._phase = self._leading_out
                return
        self._finish()

    def _leading_out(self, _: int) -> None:
        self._lines.end()
        guarded(self._note_calls)()
        self._finish()

    def _note_calls(self) -> None:
        for file, line, function, name in self._lines.forward_calls():
            self._sites.add(FORWARD, file, line, function, {"name": name})
        for file, owned in self._ownership.of_modules().items():
            if owned:
                self._sites.add(SOURCE, file, 1, None, {})

    def _finish(self) -> None:
        self._phase = self._before_more if self._hub.uses_cuda else self._done
        guarded(self._tell_closing)()
        self._window.stop()
        self._window.save_beside(self._save)

    def _tell_closing(self) -> None:
        """Say that the steps that do not come now are not the program's fault: what many operators left takes a while
        to be written, and holds up the interpreter."""
        with unsignalled():
            (self._hub.folder / CLOSING).touch()

    def _before_more(self, _: int) -> None:
        watch = SyncWatch(self._ownership)
        if guarded(watch.begin)(self._hub.torch):
            self._syncs = watch
        guarded(self._allocations.begin_history)()
        self._phase = self._after_window

    def _after_window(self, _: int) -> None:
        self._steps_after += 1
        if self._steps_after >= SYNC_STEPS:
            guarded(self._end_syncs)()
            guarded(self._allocations.end_history)()
            self._phase = self._done

    def _done(self, _: int) -> None:
        """Do nothing more."""

    # -- writing --------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        with unsignalled():
            guarded(self._lines.save)(self._hub.folder / LINES)
            self._lines = LineLog(self._ownership)  # without what is on disk now
            self._window.save(self._hub.folder / TRACE)
        self._saved = True

    def _end_syncs(self) -> None:
        watch = self._syncs
        if watch is not None:
            watch.end()
            lines = "".join(encode(record) + "\n" for record in watch.records(max(1, self._steps_after)))
            with unsignalled():
                (self._hub.folder / SYNCS).write_text(lines)
            self._syncs = None
