"""How much of a bundle there is time for, and which part of it saves most for its time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.constraints import excluded_by
from diagnose.compose.proposals.proposals import Proposal
from diagnose.compose.search.budget import Budget
from diagnose.compose.search.bundle import LEAST, Bundle, as_one, gather
from diagnose.compose.stack.stack import Stack
from diagnose.model import Gate
from diagnose.trial.planning.estimates import Plan
from diagnose.verdict import SURE_SAVING

LITTLE = 0.1
"""The part of what a bundle promises that may be left without a trial; chosen, not measured."""


def affordable(
    bundle: Bundle,
    stack: Stack,
    queue: Sequence[Candidate],
    allow: Collection[Gate],
    budget: Budget,
    tried: Collection[frozenset[str]] = (),
) -> Bundle | None:
    """Return the part of a bundle to try on a stack, none of those `tried`; None where its fixes are to be tried one by
    one: no part has the time, or the one to try has a single fix.

    Trajectories take longest. Beside kept fixes, what changes no bit needs no more than its own gate. Where there is
    time for none, the part that saves most for its time is worth the risk of being cut short; but not where one fix has
    its time and saves as much for it, nor where the part would not end at best, and one of them promises much, which
    takes less time by itself.
    """
    parts = [bundle, bundle.without_training]
    if budget.bounded:
        parts += [_without_compiler(part, stack, queue, allow) for part in parts if _brings_compiler(part)]
    if stack.kept:
        parts.append(gather(stack, _of(queue, bundle.names), frozenset(allow) & {Gate.BITWISE}))
    ways = _in_order([part for part in parts if part.members and frozenset(part.names) not in tried], budget)
    fitting = next((way for way in ways if budget.refused_plan(way.plan) is None), None)
    if fitting is not None:
        return fitting if len(fitting.members) > 1 else None
    ways = [way for way in ways if len(way.members) > 1 and _rate(way, budget) > _best_alone(bundle, budget)]
    if any(member.proposal.share >= SURE_SAVING for member in bundle.members):
        ways = [way for way in ways if budget.ends_at_best(way.plan)]
    ways.sort(key=lambda way: -_rate(way, budget))
    return next((way for way in ways if budget.risks(way.plan)), None)


def better_apart(bundle: Bundle, budget: Budget) -> bool:
    """Whether each of its fixes has a trial of its own, as it is small and there is time for that."""
    return len(bundle.members) < LEAST and budget.has_time_for_each([Plan(fixer) for fixer in bundle.fixers])


def outbids(proposal: Proposal, bundle: Bundle, budget: Budget) -> bool:
    """Whether one fix saves more for the time of a trial of its own, which would be begun, than a bundle for its.

    Of a bundle that ends in time it is none of the members, nor excludes one: that promises more.
    """
    fixer, whole = proposal.fixer, budget.refused_plan(bundle.plan) is None
    if whole and (fixer.name in bundle.names or excluded_by(fixer, bundle.fixers)):
        return False
    plan = Plan(fixer, promised=proposal.share)
    return budget.begun(plan) and _per_ns(proposal.predicted_ns, plan, budget) > _rate(bundle, budget)


def _without_compiler(bundle: Bundle, stack: Stack, queue: Sequence[Candidate], allow: Collection[Gate]) -> Bundle:
    """Gather the members of a bundle that compile nothing, on the same stack."""
    plain = [fixer.name for fixer in bundle.fixers if not fixer.compiles]
    return gather(stack, _of(queue, plain), frozenset(allow) & {fixer.gate for fixer in bundle.fixers})


def _brings_compiler(bundle: Bundle) -> bool:
    return any(fixer.brings_compiler for fixer in bundle.fixers)


def _in_order(parts: Sequence[Bundle], budget: Budget) -> list[Bundle]:
    """The whole, which is the first, and parts of it as they are to be considered.

    A part goes first where it saves more for its time, and a trial of the others still fits behind it, or they promise
    next to nothing: a fix is then kept sooner, and does not fall with them. Where time is shorter, all at once is what
    ends in it, and a part is what remains if not.
    """
    if not budget.bounded or not parts:
        return list(parts)
    whole = parts[0]

    def goes_first(part: Bundle) -> bool:
        others = [fixer for fixer in whole.fixers if fixer.name not in part.names]
        if not others or _rate(part, budget) <= _rate(whole, budget):
            return False
        needless = part.predicted_ns >= (1 - LITTLE) * whole.predicted_ns
        return needless or budget.has_time_for_each([part.plan, Plan(as_one(others))])

    first = [part for part in parts if goes_first(part)]
    return [*sorted(first, key=lambda part: -_rate(part, budget)), *(part for part in parts if part not in first)]


def _rate(bundle: Bundle, budget: Budget) -> float:
    """Return the ns of a step that a bundle promises to save, for each ns that it is expected to take to keep it."""
    return _per_ns(bundle.predicted_ns, bundle.plan, budget)


def _best_alone(bundle: Bundle, budget: Budget) -> float:
    """The rate of the best of its fixes that has the time for a trial of its own; 0 where none has."""
    rates = (
        _per_ns(member.proposal.predicted_ns, Plan(fixer), budget)
        for member, fixer in zip(bundle.members, bundle.fixers, strict=True)
        if budget.refused(fixer) is None
    )
    return max(rates, default=0.0)


def _per_ns(promised_ns: int, plan: Plan, budget: Budget) -> float:
    return promised_ns / max(1, budget.ns_to_keep(plan))


def _of(queue: Sequence[Candidate], names: Collection[str]) -> list[Candidate]:
    return [one for one in queue if one.fixer.name in names]
