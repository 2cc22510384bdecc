"""What the first trial may be: told to the bench before the control, so that both start together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from diagnose.compose.bundle import Bundle
from diagnose.compose.proposed_edits import ProposedEdits
from diagnose.compose.stack import Stack
from diagnose.fixer import Edits
from diagnose.program import Program
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.prelaunch import Expected

Copy = Callable[[Stack, str, Edits | None], Program]
"""A copy of the program with a stack in it, and perhaps one answer more."""


def expected(
    due: Bundle | ProposedEdits,
    stack: Stack,
    original: Program,
    copy: Copy,
    larger: Callable[[Bundle], Bundle],
    step_ns: int,
) -> tuple[Expected, ...]:
    """The trial that is due, and what is left of it if there is no time for what changes the training.

    `larger` gives a bundle with what is foreseen of it; `step_ns` is the step of the original as it was watched.
    """
    if isinstance(due, ProposedEdits):
        first = due.variants[0]
        patched = copy(stack, first.fixer.name, first.answer)
        return (Expected(Plan(first.fixer), original, patched, step_ns=step_ns),)
    whole = larger(due)
    harmless = copy(whole.harmless, "harmless", None) if whole.trains else None
    ways = [(due, whole)]
    if whole.trains and whole.without_training.members:
        ways.append((due.without_training, whole.without_training))
    return tuple(
        Expected(
            replace(more.plan, names=way.names),
            original,
            copy(more.stack, "together", None),
            harmless if more.trains else None,
            step_ns,
        )
        for way, more in ways
    )
