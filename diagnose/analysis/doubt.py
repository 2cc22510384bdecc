"""How much of a claim is in doubt: nobody knows exactly what the profiler cost the host, nor how often comes what a
single step has.

    doubtful_ns(claim, measures)     # may not be saved: the profiler may have made the host that late
    hidden_ns(claim, measures)       # may be saved besides: the profiler may have made the host that hid it
    recurring(claim, measures)       # the part of its time that comes in more than one step

A recording alone knows the cost of its records to a factor (`diagnose.measure.replay.overhead`). A live run watches
steps without a profiler: how late the host is altogether is not in doubt there, but where it is late may be.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.replay.savings import cut_intervals, replayed
from diagnose.rule import Claim

MUCH = 0.1
"""A claim of which this share is in doubt is a bound, not a measurement, and what it may come to is said."""

LONE = 0.5
"""The share of a claim that a single step of several has beyond any other: what happened once may never come again."""


def recurring(claim: Claim, measures: Measures) -> float:
    """Return the part (0 to 1) of a claim's time that several steps have, where most of it lies in one; else 1.0."""
    if measures.step_count < 2 or claim.knows_how_often:
        return 1.0
    per_step = np.sort(measures.per_step(claim.claims))
    lone = (per_step[-1] - per_step[-2]) / max(int(per_step.sum()), 1)
    return float(1 - lone) if lone > LONE else 1.0


def unreplayed(claim: Claim, measures: Measures) -> bool:
    """Whether the accounting alone answers for a claim, though a device ran ahead of its host."""
    return claim.recoverable_ns > 0 and measures.has_device and not replayed(measures)


def doubtful_ns(claim: Claim, measures: Measures) -> int:
    """Return how many ns of a claim to time in which the device idles the profiler itself may have cost."""
    if claim.recoverable_ns == 0 or not replayed(measures) or _is_of_device(claim, measures):
        return 0
    claims = claim.claims & measures.counted
    return measures.replay.doubtful_of(claim.cut if claim.cut is not None else cut_intervals(measures, claims))


def hidden_ns(claim: Claim, measures: Measures) -> int:
    """Return by how much more a claim to time in which the device works may save: a host that is no faster than the
    recorded one limits what faster kernels bring, and without a profiler it is faster. 0 where that is little."""
    if claim.cut is None or claim.cut.scale is None or not replayed(measures) or not _is_of_device(claim, measures):
        return 0
    more = measures.replay.hidden_of(claim.cut)
    return more if more > MUCH * claim.recoverable_ns else 0


def _is_of_device(claim: Claim, measures: Measures) -> bool:
    """Whether the device works in half of the time or more."""
    claims = claim.claims & measures.counted
    return (claims - measures.busy).total_ns <= claims.total_ns / 2
