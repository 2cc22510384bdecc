"""Stretches in which the idle device had work and did not begin it: another process had its turn.

    handed_over(measures)      # idle time of the device, of which others had each piece; empty where none is seen

A device that several processes share is given to one of them at a time, for a slice that its driver sets: some
milliseconds. When this program's queue runs empty, the device goes to the others, and what is launched meanwhile waits
until it comes back. What betrays that is that the wait lasts the same, whatever it is that waits: other streams, other
ranks and callbacks of the host take as long as they happen to. Parts of a model that are alike and lie on devices of
their own do not: while another device of this program is at work, the wait is for that.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure.steps.timeline import Timeline
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING

SHORTEST_NS = 500_000
"""A turn lasts that long at least: slices of 1 to 2 ms are usual, and seen in recordings."""
SAME = 0.05
"""Turns are as long as the median one, within this part of it,"""
MOSTLY = 0.75
"""in this part of the gaps that end with work which had long been launched."""
FEWEST = 8
"""Turns in a recording, and"""
KINDS = 5
"""different kernels and copies that they end with: what always waits before the same work waits for something else."""
WAITED = 0.25
"""The share of a gap for which its work must have been launched at least. The host goes on launching meanwhile, and
the first it launches comes soon after the queue ran empty."""

FOR_ANOTHER = 0.5
"""The share of a gap in which other devices of the program are at work, from which on it waits for them."""


def handed_over(measures: Timeline) -> Intervals:
    """Gaps of the device that are as long as each other, and end with different work that had been launched."""
    waiting = measures.idle["dependency"] & measures.counted
    if len(waiting) < FEWEST:
        return Intervals.empty()
    gaps = measures.busy.gaps(int(measures.steps.start_ns[0]), int(measures.steps.end_ns[-1]))
    waited = waiting.covered(gaps.starts, gaps.ends)
    beside = _on_other_devices(measures).covered(gaps.starts, gaps.ends)
    alone = beside < FOR_ANOTHER * gaps.lengths_ns
    chosen = (gaps.lengths_ns >= SHORTEST_NS) & (waited >= WAITED * gaps.lengths_ns) & alone
    starts, ends = gaps.starts[chosen], gaps.ends[chosen]
    if len(starts) < FEWEST:
        return Intervals.empty()
    usual = float(np.median(ends - starts))
    same = np.abs(ends - starts - usual) <= SAME * usual
    if same.sum() < max(FEWEST, MOSTLY * len(same)) or _kinds(measures, ends[same]) < KINDS:
        return Intervals.empty()
    return Intervals.of(starts[same], ends[same])


def _on_other_devices(measures: Timeline) -> Intervals:
    """Return when devices of this program are at work that are not the one accounted for."""
    device = measures.trace.device
    return Intervals.of_rows(device, ~measures.rows)


def _kinds(measures: Timeline, ends: np.typing.NDArray[np.int64]) -> int:
    """Return how many different kernels and copies begin at the ends of the gaps."""
    device = measures.trace.device
    names = device.name[np.isin(device.start_ns, ends) & measures.rows]
    return len(np.unique(names[names != MISSING]))
