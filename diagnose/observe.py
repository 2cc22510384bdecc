"""Watches one run of the user's program and turns what it left into a diagnosis, with every event in the journal."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from diagnose.collect import launch
from diagnose.collect.progress import CounterValues, FactsWritten, PhaseBegan, Progress, StepsEnded, WindowWritten
from diagnose.collect.recipe import Recipe
from diagnose.collect.records import UNWATCHED
from diagnose.engine import diagnose
from diagnose.measure.profile.step_profile import slowest_profile
from diagnose.model import Diagnosis, Facts
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.program.settings import Settings, drop_ignored, settings_of
from diagnose.report.export import contract
from diagnose.report.style.vocabulary import KILLED, how_it_ended, named_count
from diagnose.session import (
    AnyEvent,
    CountersRead,
    DiagnosisMade,
    FactsLearned,
    PhaseChanged,
    ProgramOutput,
    Session,
    StepsProfiled,
    StepsSeen,
    TraceWritten,
    Warned,
)
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.units import printable

DIAGNOSIS = "diagnosis.json"
"""The file of the run folder that holds the diagnosis as `analyze --json` prints it."""


@dataclass(frozen=True)
class Observation:
    """The result of one watched run."""

    outcome: launch.Outcome
    traces: tuple[Trace, ...]
    diagnosis: Diagnosis


def observe(
    program: Program,
    recipe: Recipe,
    session: Session,
    catalogue: Catalogue,
    stop: threading.Event | None = None,
    on_screen: bool = False,
) -> Observation:
    """Run the program to its end (or to its trace, as the recipe says) and diagnose it.

    `on_screen`: a screen owns the terminal, so the program's output goes into the journal.
    """
    steps = _StepCount()
    settings = settings_of(program.cwd)

    def tell(progress: Progress) -> None:
        steps.see(progress)
        for event in _events(progress):
            session.record(event)
        if isinstance(progress, WindowWritten) and steps.all_traced:
            # Findings show while the program goes on; what the watcher still learns makes them anew at the end.
            _diagnose_early(session, catalogue, settings, on_screen)

    outcome = launch.run(
        program.command(sys.executable),
        recipe,
        session.path,
        tell,
        on_output=(lambda text: session.record(ProgramOutput(text=text))) if on_screen else None,
        stop=stop,
        cwd=program.cwd,
    )
    if outcome.ranks:
        session.record(PhaseChanged(phase="reading the trace"))
    traces = tuple(open_traces([session.path])) if outcome.ranks else ()
    diagnosis = drop_ignored(diagnose(traces, catalogue), settings)
    shortcomings = _shortcomings(steps, recipe, outcome, _why_unwatched(session.path))
    diagnosis = replace(diagnosis, warnings=(*shortcomings, *diagnosis.warnings))
    for problem in catalogue.problems:
        session.record(Warned(message=f"{problem.module} was left out: {problem.message}"))
    session.write(DIAGNOSIS, contract.render(diagnosis))
    session.record(DiagnosisMade(diagnosis=diagnosis))
    _record_profile(traces, diagnosis, session)
    return Observation(outcome, traces, diagnosis)


def _diagnose_early(session: Session, catalogue: Catalogue, settings: Settings, on_screen: bool) -> None:
    """Record what is found so far. Whatever is wrong, as with a file on a full disk or with a diagnosis of ours, must
    not end the program that trains: the same is done, and said, once it has ended.
    """
    try:
        traces = open_traces([session.path])
        diagnosis = drop_ignored(diagnose(traces, catalogue), settings)
    except Exception:  # noqa: BLE001 - see above
        return
    session.record(DiagnosisMade(diagnosis=diagnosis))
    if on_screen:  # only a screen shows it before the end, where it is computed anew
        _record_profile(traces, diagnosis, session)


def _record_profile(traces: Sequence[Trace], diagnosis: Diagnosis, session: Session) -> None:
    """Keep what the steps consist of, for the screen and the page, so that neither has to read the trace again."""
    profile = slowest_profile(traces, diagnosis)
    if profile is not None:
        session.record(StepsProfiled(profile=profile))


class _StepCount:
    """Counts the steps of the run, for the sentence that says why there is no trace."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._traced: set[int] = set()

    @property
    def most(self) -> int:
        """Steps of the rank that took the most."""
        return max(self._steps.values(), default=0)

    @property
    def traced(self) -> bool:
        """Whether any rank was traced."""
        return bool(self._traced)

    @property
    def all_traced(self) -> bool:
        """Whether every rank that has taken a step was traced."""
        return set(self._steps) <= self._traced

    def see(self, progress: Progress) -> None:
        if isinstance(progress, StepsEnded):
            before = 0 if progress.anew else self._steps.get(progress.rank, 0)
            self._steps[progress.rank] = before + progress.count
        elif isinstance(progress, WindowWritten):
            self._traced.add(progress.rank)


def _why_unwatched(folder: Path) -> str | None:
    """Return what failed in the watcher of a process that left no files of a rank."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        failures = msgspec.json.decode((folder / UNWATCHED).read_bytes(), type=list[str])
        return printable(failures[0]) if failures else None
    return None


def _shortcomings(
    steps: _StepCount, recipe: Recipe, outcome: launch.Outcome, unwatched: str | None = None
) -> tuple[str, ...]:
    failed = outcome.returncode and not (outcome.stopped or outcome.interrupted)
    how = f"the program failed with {how_it_ended(outcome.returncode)}" if failed else "the program ended"
    # Who is killed cannot write down the last half second.
    least = "at least " if failed and outcome.returncode in KILLED else ""
    after = f"{how} after {least}{named_count(steps.most, 'step')}"
    if steps.traced:
        return (f"{after}: what is said here is of its steps until then",) if failed else ()
    if not outcome.ranks and failed:
        return ("no training step was seen before it failed: what the program says above is what to mend first",)
    if not outcome.ranks and unwatched is not None:
        return (f"the program could not be watched, and ran as it does alone: the watcher failed with {unwatched}",)
    if not outcome.ranks and (outcome.stopped or outcome.interrupted):
        return (
            "the program was interrupted before its first training step had ended: let it go on for longer; if it had "
            "long been training, name the script that trains, or put its launcher after --",
        )
    if not outcome.ranks:
        return (
            "no training step was seen: nothing called an optimizer's step, a backward pass or a data loader in a "
            "process that imports torch; name the script that trains, or put its launcher after --",
        )
    sooner = f"lower --warmup (now {recipe.warmup})"
    return (
        f"{after}, before {recipe.steps} steady ones could be traced: what follows rests on the step log and samples "
        f"alone; {f'to trace sooner, {sooner}' if failed else f'let it run for longer, or {sooner}'}",
    )


def _events(progress: Progress) -> list[AnyEvent]:
    convert: Callable[..., list[AnyEvent]] = _CONVERT[type(progress)]
    return convert(progress)


def _window_events(window: WindowWritten) -> list[AnyEvent]:
    if not window.path.exists():
        return []  # of the ranks of a large job some are watched only
    return [TraceWritten(rank=window.rank, path=str(window.path), steps=window.steps)]


def _facts_events(written: FactsWritten) -> list[AnyEvent]:
    known = {field.name for field in dataclasses.fields(Facts)}  # the file has more: pid, owned roots, …
    facts = msgspec.convert({key: value for key, value in written.facts.items() if key in known}, Facts)
    return [FactsLearned(rank=written.rank, facts=facts)]


_CONVERT: dict[type, Callable[..., list[AnyEvent]]] = {
    PhaseBegan: lambda began: [PhaseChanged(phase=began.phase, detail=began.detail)],
    StepsEnded: lambda steps: [
        StepsSeen(
            rank=steps.rank, ends_ns=list(steps.ends_ns), input_ns=list(steps.input_ns), skipped=list(steps.skipped)
        )
    ],
    CounterValues: lambda counters: [CountersRead(rank=counters.rank, values=dict(counters.values))],
    WindowWritten: _window_events,
    FactsWritten: _facts_events,
}
