"""Claims that compete for the same time: who gets how much, so that no nanosecond is given back twice.

First by the accounting. Of every nanosecond, the claim nearest its source gets the part that it could give back, the
next one its part of what that leaves, and so on: a garbage collection within a stretch of Python is the collection's,
two accelerations of one kernel multiply.

Then by the replay, where it is to be trusted: the largest claim first, but after those nearer its source that claim
much of its time; all together are given no more than the step would be shorter by if the causes of all of them were
gone. What one cure makes needless is not counted for the next: a host that waits no more runs ahead, and hides its own
Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from diagnose.measure import Measures
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import cut_intervals, replayed
from diagnose.rule import Claim, Rule
from diagnose.trace.intervals import Intervals

_NAMED = 0.5
"""A claim names another one that claims at least this part of its own time, or of which it covers as much."""

_NEGLIGIBLE = 0.002
"""The share of the steps below which a claim changes no other's prediction: nobody would fix it first."""

_LEVELS = 100
"""Parts of time that several claims share are told apart to one in so many."""


@dataclass(frozen=True)
class AttributedClaim:
    """A claim after others took their share of its time."""

    rule: Rule
    claim: Claim
    recoverable_ns: int
    """The recoverable time of all counted steps together."""
    alone_ns: int
    """The saving if nothing else claimed its time."""
    shared: tuple[tuple[str, int], ...] = ()
    """Other rules that claim much of the same time, and how much of it."""
    unseen_ns: int = 0
    """How much longer the counted steps would be with what all claims lose outside them."""


def attribute(claims: Iterable[tuple[Rule, Claim]], measures: Measures) -> list[AttributedClaim]:
    """Divide the steps' time among claims that compete for it, and return the results, the largest first. Their sum
    exceeds neither the steps nor what a replay without any of the causes would save.
    """
    nearest = sorted(claims, key=lambda pair: (pair[0].nearness, -pair[1].recoverable_ns, pair[0].name))
    shares = _shared_out(nearest, measures)
    ordered = sorted(shares, key=lambda one: (-one.settled.recoverable_ns, one.settled.rule.nearness))
    if replayed(measures):
        ordered = _capped_by_replay(_after_nearer(ordered, shares, measures), measures)
    return [one.settled for one in sorted(ordered, key=lambda one: -one.settled.recoverable_ns)]


@dataclass(frozen=True)
class _Share:
    """A claim with the time that is left to it."""

    settled: AttributedClaim
    own: Intervals


def _shared_out(nearest: list[tuple[Rule, Claim]], measures: Measures) -> list[_Share]:
    """Share the time out by nearness. Per stretch it is kept which part (in `_LEVELS`) earlier claims left over.

    A claim that gives back a part of its time gives it back evenly, for all that the accounting knows. One that says
    what would change is judged by the replay, and takes what it can from the time that nobody else claims: a wait that
    throws the host back claims the gaps that follow as well, and is no reason to give less for what else is in them.
    """
    judging = replayed(measures)
    left_over: dict[int, Intervals] = {_LEVELS: measures.counted}
    wanted = [claim.claims & measures.counted for _, claim in nearest]
    found = []
    for (rule, claim), mine, others in zip(nearest, wanted, _claimed_by_others(wanted), strict=True):
        alone = min(claim.recoverable_ns, mine.total_ns)
        uncontested = mine - others
        evenly = alone * uncontested.total_ns // max(mine.total_ns, 1)
        first = min(alone, uncontested.total_ns) if judging and claim.cut is not None else evenly
        gain, own = 0.0, [Intervals.empty()]
        for part, taken in ((uncontested, first), (mine & others, alone - first)):
            given, kept, left_over = _take(left_over, part, taken)
            gain += given
            own += kept
        found.append(_Share(AttributedClaim(rule, claim, int(gain), alone), Intervals.union(own)))
    return [
        replace(one, settled=replace(one.settled, shared=_overlaps(at, found, wanted))) for at, one in enumerate(found)
    ]


def _claimed_by_others(wanted: list[Intervals]) -> Iterator[Intervals]:
    """Per claim, the time that any other one claims."""
    after = [Intervals.empty()]
    for mine in reversed(wanted[1:]):
        after.append(after[-1] | mine)
    before = Intervals.empty()
    for mine, later in zip(wanted, reversed(after), strict=False):
        yield before | later
        before = before | mine


def _take(
    left_over: Mapping[int, Intervals], part: Intervals, taken_ns: int
) -> tuple[float, list[Intervals], dict[int, Intervals]]:
    """Give so much of a part to a claim: what earlier ones left of that, where most of it was left, and what is now."""
    whole = part.total_ns
    if not whole:
        return 0.0, [], dict(left_over)
    kept: dict[int, Intervals] = {}
    gain, own = 0.0, []
    for level, stretches in left_over.items():
        here = stretches & part
        gain += here.total_ns * level / _LEVELS
        if 2 * level >= _LEVELS:
            own.append(here)
        rest = round(level * (1 - taken_ns / whole))
        for now, stays in ((rest, here), (level, stretches - part)):
            kept[now] = kept[now] | stays if now in kept else stays
    return gain * taken_ns / whole, own, {level: stays for level, stays in kept.items() if len(stays)}


def _overlaps(at: int, shares: list[_Share], wanted: list[Intervals]) -> tuple[tuple[str, int], ...]:
    """The other claims that overlap with this one so much that one of the two is the other's reason."""
    found: dict[str, int] = {}
    for other, share in enumerate(shares):
        if other == at or share.settled.alone_ns == 0 or share.settled.rule is shares[at].settled.rule:
            continue
        both = (wanted[at] & wanted[other]).total_ns
        took = other < at and both * share.settled.alone_ns > 0
        covered = both >= _NAMED * wanted[other].total_ns
        if both and (took or covered):
            found[share.settled.rule.name] = found.get(share.settled.rule.name, 0) + both
    return tuple(found.items())


def _after_nearer(ordered: list[_Share], nearest: list[_Share], measures: Measures) -> list[_Share]:
    """Return the order with every claim after the nearer ones with which it competes for much of either's time."""
    wanted = [share.settled.claim.claims & measures.counted for share in nearest]
    place = {id(share): at for at, share in enumerate(nearest)}
    found: list[_Share] = []

    def add(share: _Share) -> None:
        if any(one is share for one in found):
            return
        at = place[id(share)]
        for nearer in range(at):
            both = (wanted[at] & wanted[nearer]).total_ns
            if both and both >= _NAMED * min(wanted[at].total_ns, wanted[nearer].total_ns):
                add(nearest[nearer])
        found.append(share)

    for share in ordered:
        add(share)
    return found


def _capped_by_replay(ordered: list[_Share], measures: Measures) -> list[_Share]:
    """Hold the sum of the gains, the largest first, to what a replay without all causes so far would save."""
    negligible = _NEGLIGIBLE * measures.total_ns
    gone, changed, given, found = Intervals.empty(), Cut(), 0, []
    for share in ordered:
        one = share.settled
        if one.recoverable_ns <= negligible:
            found.append(share)
            continue
        own = one.claim.cut
        now = (gone | share.own, changed) if own is None else (gone, changed | own)
        saved_ns = measures.replay.saved_ns(cut_intervals(measures, now[0]) | now[1])
        gain = min(one.recoverable_ns, max(saved_ns - given, 0))
        if gain > negligible:
            gone, changed = now
            given += gain
        found.append(replace(share, settled=replace(one, recoverable_ns=gain)))
    return found
