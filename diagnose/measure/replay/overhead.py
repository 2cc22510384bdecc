"""The replay without what the profiler costs the host.

A profiler writes down every operator, call and Python frame on the thread that runs it: the device's work lasts as long
as ever, the host needs longer for the same. What records usually cost is known
(`diagnose.measure.replay.profiler_overhead`); where a live run watched steps before the profiler was on, the costs are
scaled so that the replay without them takes as long as those steps did.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diagnose.measure.replay.graph import NodeKind, ReplayGraph
from diagnose.measure.replay.profiler_overhead import ProfilerRecords
from diagnose.trace.schema import Float64, Int64

MOST = 3.0
"""No host takes more than so many times the usual cost: what is left of the difference has other reasons."""

SPREAD = 4.0
"""What records cost is known to this factor. Of eight live runs of eager programs on a quiet host, all but one came out
at 0.6 to 1.4 times the usual cost. Of twelve profiles from servers on which others were at work, whose untraced steps
are known, three came out at 1.1 to 1.8 times what was told of them, eight at 2.4 to 4 times, one at 8 times."""

SPREAD_OF_COMPILED = 8.0
"""The same where compiled code was recorded with Python frames: what is told of those is known from other code. Beside
profiles of the same programs without them, frames added 1.8 to 2.9 times what is told in four, 7.3 times in one."""

SPREAD_OF_WATCHED = 1.4
"""The factor within which the cost of records in one stretch of a step is known where a live run watched steps without
a profiler, which tell what all records cost together. All but one of eight runs came within so much of usual costs."""

LEAST_LEFT = 0.2
"""The share of a stretch of host time between two calls that is the program's own at least."""

_CLOSE = 0.02
"""Steps this near those that were watched are as long as they: clocks of devices vary as much."""

_FLAT = 0.01
"""Steps that get no shorter than this by cheaper records do not tell what records cost."""

_ROUNDS = 8  # halvings of MOST: to 1 %


def spread_of(records: ProfilerRecords, *, watched: bool = False) -> float:
    """Return the factor within which the cost of a profile's records is known; `watched`: a live run knows the steps
    without a profiler."""
    if watched:
        return SPREAD_OF_WATCHED
    return SPREAD_OF_COMPILED if records.has_compiled_frames else SPREAD


def cost_between(graph: ReplayGraph, records: ProfilerRecords) -> Int64:
    """Per node of the training thread, what the records since the node before cost, not scaled; 0 for all others."""
    nodes = graph.on_training[1:]
    found = np.zeros(len(graph), np.int64)
    begins, ends = graph.observed_ns[graph.first[nodes]], graph.observed_ns[nodes]
    found[nodes] = records.between(begins + graph.origin_ns, ends + graph.origin_ns)
    return found


def part_left(graph: ReplayGraph, cost_ns: Int64, scale: float) -> Float64:
    """Per node, the part of the host time before it that remains without the records."""
    host = ((graph.kind == NodeKind.LAUNCH) | (graph.kind == NodeKind.WAIT)) & (graph.first_ns > 0)
    part = cost_ns * scale / np.maximum(graph.first_ns, 1)
    return np.where(host, np.maximum(1 - part, LEAST_LEFT), 1.0)


def scale_of(length_of: Callable[[float], int], usual: float, watched_ns: int | None) -> float:
    """Return how many times the usual cost the records cost, where all steps together took `watched_ns` without them.

    `length_of` gives the replayed length at a scale. Where nobody watched the steps, or the host is no hindrance and
    the scale changes nothing, it is `usual`.
    """
    if watched_ns is None:
        return usual
    length = length_of(usual)
    if usual and abs(length - watched_ns) <= _CLOSE * watched_ns:
        return usual
    low, high = (0.0, usual) if length <= watched_ns else (usual, MOST)
    wanted = max(watched_ns, round(length_of(MOST) * (1 + _FLAT)))
    if length_of(low) <= wanted:
        return low
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if length_of(middle) <= wanted else (middle, high)
    return high
