"""The time of a gradient reduction that no buckets can hide, whatever their sizes.

Gradients become ready one after the other; collectives run one after the other. What is ready only at a moment is sent
after it: what becomes ready last is still to be reduced when the backward pass has nothing left to compute.

    least_exposed_ns(measures)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diagnose.measure.comm.calibration_curves import calibrated_ns, curve_of
from diagnose.measure.comm.ddp.rank_gradients import RankGradients
from diagnose.model import Evidence
from diagnose.trace.schema import Float64, Int64

TimeOf = Callable[[Int64], Float64]
"""Bytes of messages → what each takes, in ns."""


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


def least_exposed(measures: RankGradients) -> list[Evidence]:
    """Return the time that no bucket size hides, as evidence of a finding; empty where that is not known."""
    least = least_exposed_ns(measures)
    return [] if least is None else [Evidence("exposed by any buckets, at least", least, "ns")]


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
