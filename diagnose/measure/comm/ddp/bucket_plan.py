"""Where to cut the gradients of a backward pass into buckets, so that the last one is reduced as early as can be.

Gradients become ready one after the other; collectives run one after the other. Bucket j begins when all of it is ready
and bucket j-1 is done, and takes t(S). Few large buckets begin late, many small ones pay their latency each: over the
places at which one may cut, dynamic programming finds the plan of each number of buckets that ends first. What a
collective takes from the compute beside it counts too, as a part of its time.

The first bucket comes out small where the link would wait, and the last one because nothing hides it.

    bucket_plans(measures)[0].size_bytes     # in the order of sending
    least_exposed_ns(measures)               # what no buckets whatever can hide
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.ddp.bucket_evidence import as_evidence
from diagnose.measure.comm.ddp.rank_gradients import RankGradients
from diagnose.measure.comm.overheads import BESIDE
from diagnose.model import Evidence
from diagnose.trace.schema import Float64, Int64

TimeOf = Callable[[Int64], Float64]
"""Bytes of messages → what each takes, in ns."""

_MOST_BUCKETS = 6
"""The most buckets of a plan: more could be no better where so many already keep the link busy, and nobody would read
the list."""


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Sizes in the order in which the buckets are sent."""

    size_bytes: tuple[int, ...]
    end_ns: int
    """The time at which the last one is reduced, by the model; on the clock of the ready times."""
    busy_ns: int
    """All collectives together."""


def plans(size_bytes: Int64, ready_ns: Int64, time_of: TimeOf, slowdown: float = 0.0) -> list[BucketPlan]:
    """The best plan of each number of buckets, the best first.

    `size_bytes` and `ready_ns` are those of pieces of the gradients in the order in which they become ready; `slowdown`
    is the part of a collective's time by which it holds up the compute beside it.
    """
    count = len(size_bytes)
    if not count:
        return []
    ready = np.maximum.accumulate(ready_ns).astype(np.float64)
    ends = np.concatenate(([0], np.cumsum(size_bytes)))
    # takes[i, k]: the time of a bucket of the pieces i … k-1
    takes = np.full((count + 1, count + 1), np.inf)
    first, last = np.triu_indices(count + 1, k=1)
    takes[first, last] = time_of(np.asarray(ends[last] - ends[first], np.int64))
    end = np.full((_MOST_BUCKETS + 1, count + 1), np.inf)
    busy = np.full_like(end, np.inf)
    before = np.zeros(end.shape, np.int64)
    end[0, 0], busy[0, 0] = -np.inf, 0.0
    for used in range(1, _MOST_BUCKETS + 1):
        for upto in range(1, count + 1):
            done = np.maximum(end[used - 1, :upto], ready[upto - 1]) + takes[:upto, upto]
            spent = busy[used - 1, :upto] + takes[:upto, upto]
            known = np.isfinite(spent)
            cost = np.where(known, done + slowdown * np.where(known, spent, 0), np.inf)
            best = int(cost.argmin())
            if np.isfinite(cost[best]):
                end[used, upto], busy[used, upto], before[used, upto] = done[best], spent[best], best
    found = [
        (end[used, count] + slowdown * busy[used, count], _cut(before, used, count, ends), used)
        for used in range(1, _MOST_BUCKETS + 1)
        if np.isfinite(end[used, count])
    ]
    found.sort(key=lambda one: (one[0], one[2]))
    return [BucketPlan(sizes, round(end[used, count]), round(busy[used, count])) for _, sizes, used in found]


def _cut(before: Int64, used: int, upto: int, ends: Int64) -> tuple[int, ...]:
    sizes: list[int] = []
    while used:
        begin = int(before[used, upto])
        sizes.append(int(ends[upto] - ends[begin]))
        used, upto = used - 1, begin
    return tuple(reversed(sizes))


def earliest_end_ns(size_bytes: Int64, ready_ns: Int64, time_of: TimeOf) -> int:
    """Return when the last gradient is reduced at the earliest, by whatever buckets.

    What is ready only at a moment is sent after it, and by no collectives sooner than by a single one. `time_of` may
    be infinite, for sizes that nobody has measured: those take as long as the largest known one below, at least.
    """
    ready = np.maximum.accumulate(ready_ns).astype(np.float64)
    left = np.cumsum(size_bytes[::-1])[::-1]
    times = np.asarray(time_of(np.asarray(left, np.int64)), np.float64)
    at_least = np.maximum.accumulate(np.where(np.isfinite(times), times, 0.0)[::-1])[::-1]
    return round(float((ready + at_least).max()))


def least_exposed_ns(measures: RankGradients) -> int | None:
    """Return the time of this rank's gradient reduction that every choice of buckets leaves exposed, in ns per step:
    what is still to be reduced when the backward pass has nothing left to compute.

    By the time over size, or where one recording does not tell it by the rate of the fastest; never more than the
    buckets that were recorded. None without sizes, or where several are sent and all after the backward pass: when
    gradients became ready is not known then.
    """
    sizes, rounds = measures.gradient_pieces, measures.gradient_rounds
    if sizes is None or rounds is None or rounds.passes is None:
        return None
    first_ns = measures.communication.issued_ns[rounds.rows].min(axis=1)
    after_pass = np.median(first_ns - measures.backward_passes.end_ns[rounds.passes]) >= 0
    if after_pass and rounds.rows.shape[1] > 1:
        return None
    end = earliest_end_ns(*sizes, _time_of(measures) or _at_best(measures))
    recorded = sum(bucket.tail_ns for bucket in measures.gradient_buckets)
    return min(max(end - rounds.computes_ns, 0), recorded)


def planned_buckets(measures: RankGradients) -> list[Evidence]:
    """The best plan as evidence of a finding, by which it gets to a fixer; empty where there is none."""
    found, least = bucket_plans(measures), least_exposed_ns(measures)
    bound = [] if least is None else [Evidence("exposed by any buckets, at least", least, "ns")]
    return [*bound, *as_evidence(found[0].size_bytes)] if found else []


def bucket_plans(measures: RankGradients) -> tuple[BucketPlan, ...]:
    """Plans for the gradients of this rank's backward pass, the best first; empty where sizes or times are unknown."""
    sizes, time_of = measures.gradient_pieces, _time_of(measures)
    return () if sizes is None or time_of is None else tuple(plans(*sizes, time_of, BESIDE))


def _time_of(measures: RankGradients) -> TimeOf | None:
    """Return the time by the machine's calibrated curve, else by the line through this recording's own gradient
    collectives."""
    curve = curve_of(measures.trace.facts.curves or (), "all_reduce", measures.trace.world_size or 0)
    if curve is not None:
        return lambda size: np.nan_to_num(calibrated_ns(curve, size), nan=np.inf)
    cost = measures.exchange.cost_of_size
    if cost is None:
        return None
    each, by_byte = cost
    return lambda size: each + by_byte * size.astype(np.float64)


def _at_best(measures: RankGradients) -> TimeOf:
    """No latency, and the rate of the fastest gradient collective."""
    comm = measures.communication
    mine = comm.gradients & (comm.size_bytes > 0)
    by_byte = float((comm.transfer_ns[mine] / comm.size_bytes[mine]).min())
    return lambda size: by_byte * size.astype(np.float64)
