"""How much of a bundle there is time for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.bundle import LEAST, Bundle, gather
from diagnose.compose.stack.stack import Stack
from diagnose.model import Gate
from diagnose.verdict import SURE_SAVING

_MOST = 0.75
"""The share of what a bundle promises."""


def affordable(
    bundle: Bundle, stack: Stack, queue: Sequence[Candidate], allow: Collection[Gate], budget: Budget
) -> Bundle | None:
    """Return the largest part of a bundle that there is time to try on a stack; None where that is too little.

    Trajectories take longest. Beside kept fixes, what changes no bit needs no more than its own gate. Where there is no
    time for any fix by itself either, which starts its processes anew, the bundle is worth the risk of being cut short;
    but not where it would not end at best, and one of them promises much, which takes less time by itself.
    """
    ways = [bundle, bundle.without_training]
    if stack.kept:
        wanted = [one for one in queue if one.fixer.name in bundle.names]
        ways.append(gather(stack, wanted, frozenset(allow) & {Gate.BITWISE}))
    ways = [way for way in ways if len(way.members) > 1]
    fitting = next((way for way in ways if budget.refused_plan(way.plan) is None), None)
    if fitting is not None or not all(budget.refused(fixer) is not None for fixer in bundle.fixers):
        return fitting
    if any(member.proposal.share >= SURE_SAVING for member in bundle.members):
        ways = [way for way in ways if budget.ends_at_best(way.plan)]
    return next((way for way in ways if budget.risks(way.plan)), None)


def better_apart(bundle: Bundle, budget: Budget) -> bool:
    """Whether each of its fixes has a trial of its own: it is small, and there is time for that; or there is little
    time, of which compiling the others would take more than what they promise is worth beside one of them."""
    few = len(bundle.members) < LEAST and budget.has_time_for_each(bundle.fixers)
    return few or (budget.bounded and len(bundle.members) < 2 * LEAST and _one_promises_most(bundle))


def _one_promises_most(bundle: Bundle) -> bool:
    """Whether fixes that bring the compiler ride along with one that compiles nothing."""
    if not any(fixer.brings_compiler for fixer in bundle.fixers):
        return False
    plain = (member.proposal for member in bundle.members if not member.variants[0].fixer.compiles)
    return max((proposal.predicted_ns for proposal in plain), default=0) >= _MOST * bundle.predicted_ns
