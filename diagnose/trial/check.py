"""Holds one edit to its gates, without timing it.

`GATES` are asked in turn. A gate needs the bench, the fixer with the promise of this very edit, and two copies of the
program: as found, and with the edit. It answers for itself; one that refuses does not keep the others from being asked.
"""

from __future__ import annotations

from collections.abc import Callable

from diagnose.fixer import Fixer
from diagnose.model import GateAnswer, GateCheck
from diagnose.program import Program
from diagnose.trial.bench import Bench

_ANSWERS = {True: GateAnswer.PASSED, False: GateAnswer.REFUSED, None: GateAnswer.UNVERIFIED}

Ask = Callable[[Bench, Fixer, Program, Program], GateCheck]


def numbers(bench: Bench, fixer: Fixer, original: Program, patched: Program) -> GateCheck:
    """Losses, gradients and parameters of the first steps, as the fixer's class promises them.

    A program that fails with the edit, and not without it, is refused: nothing else is known to be wrong with it.
    """
    found = bench.gate(fixer.gate, original, patched, fixer.rounds_to, fewer=fixer.fewer_parameters)
    broken = bench.broken_by(original, patched) if found.passed is None else None
    if broken is not None:
        return GateCheck(found.gate.value, GateAnswer.REFUSED, f"with the edit {broken}; without it, it gives them")
    return GateCheck(found.gate.value, _ANSWERS[found.passed], found.detail)


GATES: tuple[Ask, ...] = (numbers,)


def check_edit(bench: Bench, fixer: Fixer, original: Program, patched: Program) -> tuple[GateCheck, ...]:
    """What each gate says."""
    return tuple(ask(bench, fixer, original, patched) for ask in GATES)
