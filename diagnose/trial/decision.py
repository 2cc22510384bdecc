"""Turns a comparison into a verdict from its figures, the mechanism, memory and numbers."""

from __future__ import annotations

from dataclasses import replace

from diagnose.fixer import Fixer
from diagnose.model import Decision, GateResult, Verdict
from diagnose.trial.ab.result import Comparison, Ending
from diagnose.trial.mechanism import mechanism
from diagnose.trial.standalone import ruling_on_failure
from diagnose.verdict import LEAST_GENERATIONS, LEAST_PAIRS, Ruling, ruling, ruling_on_mechanism, ruling_on_time


def measured(fixer: Fixer, found: Comparison, smallest: float) -> Verdict:
    """The figures of a comparison; what they mean is not decided yet."""
    return Verdict(
        fixer.name,
        Decision.FAILED,
        "",
        saving=found.saving,
        saving_ns=round(found.saving.estimate * found.step_ns) if found.saving else None,
        resolution=smallest,
        pairs=len(found.pairs),
        generations=found.generations,
        peak_memory_bytes=found.peak_bytes,
    )


def skipped(verdict: Verdict) -> Verdict:
    """The verdict on what the user left before it was decided."""
    count = verdict.pairs
    when = f"after {count} pair{'s' if count > 1 else ''}" if count else "before its first pair"
    said = f"skipped at your request {when} of blocks"
    return replace(verdict, decision=Decision.NOT_TRIED, summary=said)


def explained(verdict: Verdict, fixer: Fixer, found: Comparison) -> Verdict:
    """The verdict with what became of the measure that the fixer claims to move: `unexplained` where it did not move,
    which no look at the numbers changes."""
    assert found.saving is not None  # or the times would have settled it
    moved = mechanism(fixer.mechanism, found)
    verdict = replace(verdict, mechanism=moved)
    unmoved = ruling_on_mechanism(found.saving, verdict.pairs, moved)
    return replace(verdict, decision=unmoved.decision, summary=unmoved.summary) if unmoved else verdict


def ruled(verdict: Verdict, found: Comparison, gate: GateResult) -> Verdict:
    """The verdict on what is faster and explained."""
    assert found.saving is not None  # or the times would have settled it
    memory_bytes = found.memory.device_bytes if found.memory else None
    final = ruling(found.saving, verdict.pairs, gate, found.peak_bytes, memory_bytes)
    return replace(verdict, decision=final.decision, summary=final.summary, gate=gate)


def settled_by_time(verdict: Verdict, found: Comparison) -> Ruling | None:
    """The decision if how it ran, and how fast, settles it."""
    if found.failed is not None:
        return ruling_on_failure(found.failed[1])
    enough = verdict.pairs >= LEAST_PAIRS and verdict.generations >= LEAST_GENERATIONS
    if found.ending is Ending.OUT_OF_TIME and not enough:
        return Ruling(Decision.NOT_TRIED, "the budget left no time to end its trial")
    if found.ended_after is not None and verdict.pairs < LEAST_PAIRS:
        return Ruling(Decision.NOT_TRIED, "the program ends before it could be measured")
    return ruling_on_time(
        found.saving,
        verdict.pairs,
        verdict.generations,
        verdict.resolution or 0.0,
        stopped_early=found.ending is Ending.HOPELESS,
        beyond_luck=found.ending is Ending.SURE,
    )
