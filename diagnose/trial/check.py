"""Holds one edit to its gates, without timing it: the numerics gate of its class, then whole runs."""

from __future__ import annotations

from diagnose.fixer import Fixer
from diagnose.model import GateAnswer, GateCheck
from diagnose.program import Program
from diagnose.trial.bench import Bench

_ANSWERS = {True: GateAnswer.PASSED, False: GateAnswer.REFUSED, None: GateAnswer.UNVERIFIED}


def check_edit(bench: Bench, fixer: Fixer, original: Program, patched: Program) -> tuple[GateCheck, ...]:
    """Return each gate's answer. Whole runs are compared unless the numbers are refused: a program whose first steps
    cannot be captured may still be run from start to end.

    A program that fails with the edit, and not without it, is refused: nothing else is known to be wrong with it.
    """
    found = bench.numbers(fixer.gate, original, patched, fixer.rounds_to)
    broken = bench.broken_by(original, patched) if found.passed is None else None
    if broken is not None:
        return (GateCheck(found.gate.value, GateAnswer.REFUSED, f"with the edit {broken}; without it, it gives them"),)
    numbers = GateCheck(found.gate.value, _ANSWERS[found.passed], found.detail)
    if numbers.answer is GateAnswer.REFUSED:
        return (numbers,)
    return (numbers, *bench.whole_runs(found.gate, original, patched, fixer.rounds_to, loading=fixer.changes_loading))
