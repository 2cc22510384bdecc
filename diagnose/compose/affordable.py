"""How much of a bundle there is time for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diagnose.compose.budget import Budget
from diagnose.compose.candidates import Candidate
from diagnose.compose.stack import Stack
from diagnose.compose.together import LEAST, Bundle, gather
from diagnose.model import Gate


def affordable(
    bundle: Bundle, stack: Stack, queue: Sequence[Candidate], allow: Collection[Gate], budget: Budget
) -> Bundle | None:
    """As much of a bundle on a stack as there is time for, the most first; None where that is too little.

    Trajectories take longest. Beside kept fixes, what changes no bit needs no more than its own gate.
    """
    ways = [bundle, bundle.without_training]
    if stack.kept:
        wanted = [one for one in queue if one.fixer.name in bundle.names]
        ways.append(gather(stack, wanted, frozenset(allow) & {Gate.BITWISE}))
    return next((way for way in ways if len(way.members) > 1 and budget.refused_plan(way.plan) is None), None)


def better_apart(bundle: Bundle, budget: Budget) -> bool:
    """Whether it is so small that each of its fixes has a trial of its own: unless time is too short for that."""
    return len(bundle.members) < LEAST and budget.has_time_for_each(bundle.fixers)
