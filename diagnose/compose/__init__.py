"""Finds the fixes that hold together: tries each on top of those already kept, and merges what is left.

findings ──▶ proposals/ ──▶ search/ ──▶ Outcome ──▶ stack/ (texts, patch)
                 │             ▲
                 │             └── oom/         for a program that runs out of memory as found
                 ├──▶ dry_run                   what would be tried; runs nothing
                 └──▶ check                     asks fixers whatever the findings say
journal: what all of them tell
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from diagnose.compose.dry_run import preview
from diagnose.compose.journal import NOTHING_TO_CHANGE, Journal, Record
from diagnose.compose.oom.oom_rescue import rescue
from diagnose.compose.outcome import Outcome
from diagnose.compose.search.greedy_search import WITHOUT_ASKING, GreedySearch
from diagnose.compose.stack import stack_store
from diagnose.compose.stack.run_context import RunContext, knowledge
from diagnose.model import Decision, Diagnosis, Gate, Verdict
from diagnose.plugins import Catalogue
from diagnose.program import Program, patch
from diagnose.session.owner import TRIALS, clear
from diagnose.trace import Trace
from diagnose.trial.baseline_failure import OutOfMemoryBaseline
from diagnose.trial.bench import Bench
from diagnose.trial.process.process_group import never, undisturbed
from diagnose.trial.process.write_guard import written_elsewhere
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.skip_request import SkipRequest
from diagnose.trial.watched_program import WatchedProgram, multiplies_in_narrow_formats
from diagnose.units import format_ns, format_share

__all__ = ["WITHOUT_ASKING", "GreedySearch", "Outcome", "dry_run", "fix", "stack_store", "summary"]


_Given = tuple[Program, Diagnosis, RunContext, Catalogue, Record, Bench]
_FEW = 3
"""Fixes that are named where there was no time for more of them."""
_BY_FAR = 4
"""The multiple of the steps after which two copies died: a program that goes on for so long with the device to
itself may not die."""


def fix(
    program: Program,
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    catalogue: Catalogue,
    record: Record,
    folder: Path,
    schedule: Schedule | None = None,
    budget_ns: int | None = None,
    allow: frozenset[Gate] = WITHOUT_ASKING,
    died: bool = False,
    cancelled: Callable[[], bool] = never,
    began_ns: int | None = None,
    skip: SkipRequest | None = None,
) -> Outcome:
    """Try what the findings suggest, on copies below `folder` that are gone in the end, or where that takes longer than
    a budget allows, soon after it; the patch is stored there.

    `began_ns` is when the watched program was started, in ns since the epoch; `skip` lets the user leave one trial.

    `died`: memory ran out, and what is looked for is a program that runs; so it is where a copy dies of what it keeps
    from step to step, for which it was watched for too short. Writes nothing to the user's files. Raises
    ProgramFailed where the program fails in an unchanged copy, and Cancelled, with nothing left running, soon after
    `cancelled` says so.
    """
    plan = schedule or Schedule()
    deadline = Deadline.within(budget_ns)
    known = knowledge(program, diagnosis, traces, budget_ns)
    trials, journal = folder / TRIALS, Journal(record)
    mortal = any(finding.ends_run for finding in diagnosis.findings)
    compiles = any(site.kind == "compile" for site in known.sites)
    step_ns, narrow = diagnosis.average_step_ns, multiplies_in_narrow_formats(diagnosis)
    watched = WatchedProgram.of(traces, began_ns, step_ns, compiles=compiles, mortal=mortal, narrow=narrow)
    try:
        with Bench(
            program,
            trials,
            plan,
            deadline,
            watched,
            on_phase=journal.phase,
            on_control=journal.tell_of_control,
            cancelled=cancelled,
            skip=skip,
            allows_training=Gate.TRAINING in allow,
        ) as bench:
            given = (program, diagnosis, known, catalogue, record, bench)
            if died:
                outcome = rescue(*given, deadline, allow, max((len(trace.step_log) for trace in traces), default=0))
            else:
                outcome = _tried(given, plan, deadline, allow, mortal=mortal)
        if (elsewhere := written_elsewhere(trials)) is not None:
            journal.warn(elsewhere)
    finally:
        with undisturbed():
            clear(trials, deadline.closing_ns)  # copies, what they wrote, and captures of many GB
    if outcome.patch is not None:
        patch.store(outcome.patch, folder)
        if outcome.stack is not None:
            stack_store.store(outcome.stack, folder)
    return outcome


def _tried(given: _Given, plan: Schedule, deadline: Deadline, allow: frozenset[Gate], *, mortal: bool) -> Outcome:
    """Return what came of fixes for a program that runs; of one that is `mortal`, of its rescue where memory runs
    out."""
    try:
        return GreedySearch(*given, plan, deadline, allow).run()
    except OutOfMemoryBaseline as death:
        steps = _dies_by_itself_after(given[-1], death.steps) if mortal else None
        outcome = rescue(*given, deadline, allow, steps) if steps is not None else Outcome((), None)
        if outcome.patch is None:
            raise
        return outcome


def _dies_by_itself_after(bench: Bench, steps: int) -> int | None:
    """Return how many steps an unchanged copy takes until memory runs out, which two that died after `steps` may have
    shared; None where it outlives them by far."""
    seen = bench.run_alone(bench.copy({}, "by-itself"), "by-itself", _BY_FAR * max(1, steps))
    if seen.failure is None or seen.failure.decision is not Decision.OUT_OF_MEMORY:
        return None
    return max(steps, seen.reached.steps or 0)


def dry_run(
    program: Program,
    diagnosis: Diagnosis,
    traces: Sequence[Trace],
    catalogue: Catalogue,
    record: Record,
    allow: frozenset[Gate] = WITHOUT_ASKING,
) -> tuple[Verdict, ...]:
    """Return what `fix` would try, with the diffs. Runs nothing and writes nothing."""
    return preview(program, diagnosis, knowledge(program, diagnosis, traces), catalogue, record, allow)


def summary(outcome: Outcome) -> str:
    """One line on the whole."""
    advised = sum(verdict.decision is Decision.ADVICE for verdict in outcome.verdicts)
    left = f"; {advised} left to you" if advised else ""
    others = [verdict for verdict in outcome.verdicts if verdict.decision is not Decision.ADVICE]
    edits = [verdict for verdict in others if verdict.summary != NOTHING_TO_CHANGE]
    if not edits and not outcome.no_time:
        return f"no fixer had anything to try{left}"
    kept = sum(verdict.decision is Decision.KEPT for verdict in edits)
    said = f"{kept} of {len(edits)} {'fix' if len(edits) == 1 else 'fixes'} kept"
    if outcome.final is not None:
        said += f", {format_share(1 - outcome.final.patched_ns / outcome.final.original_ns)} of the step saved"
    return said + _no_time(outcome) + left


def _no_time(outcome: Outcome) -> str:
    """Return what there was no time for, with its promise: a finding that several of them treat counts once."""
    if not outcome.no_time:
        return ""
    promised = {finding.rule: finding.recoverable_ns for one in outcome.no_time for finding in one.findings}
    names = [one.fixer.name for one in outcome.no_time]
    few = ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
    return f"; no time for {few}, predicted to save about {format_ns(sum(promised.values()))} of a step"
