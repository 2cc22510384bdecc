"""A rank's recorded window as a graph of what waits for what, in arrays, and its solution in one pass.

A node is a moment: a runtime call on the host begins (`LAUNCH`) or returns from waiting (`WAIT`), a piece of device
work ends (`WORK`), two dependencies meet (`JOIN`). Each has at most two predecessors, and happens at the later of

    time[first] + first_ns    and    time[second] + second_ns

Nodes are in topological order, so that solving is one pass, and changing the run means changing weights. Kept as
numpy columns; the pass itself runs over lists, which is four times as fast in Python as over arrays.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from diagnose.trace.schema import Int64, UInt8

NEVER = -(1 << 60)
"""The weight of a dependency that is not there: it is never the later one. Ns since the epoch stay below 2^61."""


class NodeKind(enum.IntEnum):
    """The event that a node stands for."""

    ORIGIN = 0
    LAUNCH = 1
    """A call that launches device work, or one that will wait, begins."""
    WAIT = 2
    """A call that waits for the device returns."""
    WORK = 3
    """A piece of device work ends."""
    JOIN = 4
    """Device work may begin as far as other streams are concerned."""


@dataclass(frozen=True, eq=False)
class ReplayGraph:
    """Columns, one row a node, in topological order; node 0 is the origin."""

    observed_ns: Int64
    """The time at which the recording says that it happened, relative to the origin."""
    kind: UInt8
    row: Int64
    """Row of `trace.calls` for LAUNCH and WAIT, of `trace.device` for WORK and JOIN."""
    first: Int64
    """The node before: in program order for the host; the launch for work; the stream's work before for a join."""
    first_ns: Int64
    second: Int64
    """The other dependency: the work waited for; the stream's work (or a join) before work; another stream's work."""
    second_ns: Int64
    origin_ns: int
    """The origin on the trace's clock; device times are `device_shift_ns` later than there."""
    device_shift_ns: int
    work_node: Int64
    """Per row of `trace.device`, its node."""
    on_training: Int64
    """The host nodes of the training thread and of those that take turns with it, in order; the origin is the first."""
    broken: int
    """Dependencies left out because the recording contradicts them."""

    def __len__(self) -> int:
        return len(self.kind)


def solved(first: Int64, first_ns: Int64, second: Int64, second_ns: Int64) -> Int64:
    """Return when every node happens; the origin at 0."""
    times = [0]
    add = times.append
    edges = zip(first.tolist(), first_ns.tolist(), second.tolist(), second_ns.tolist(), strict=True)
    next(edges, None)
    for one, one_ns, other, other_ns in edges:
        by_one = times[one] + one_ns
        by_other = times[other] + other_ns
        add(by_one if by_one >= by_other else by_other)
    return np.array(times, np.int64)
