"""Operators that stand still on the host the first time they see a shape.

    found = measures.new_shapes
    found.ops                    # rows of trace.ops: first calls of a shape that took far longer than later ones
    found.usual_ns               # per row, what a call of that operator takes on the host when it knows the shape

Libraries choose and build what they run for a shape when it first comes: cuDNN its plans for convolutions and
attention, cuBLASLt its heuristics, Triton and TunableOp the fastest of several kernels, the driver code that it loads.

Thresholds
    LONG_NS 1 ms: on the host, without the operators within. A launch takes 5 to 10 µs; loading a kernel that was never
    run 0.1 to 0.5 ms.
    TIMES 10: as long as the median call with a shape that was seen before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.views.host_activity import ALLOCATIONS, on_threads
from diagnose.measure.views.names import named
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int64

LONG_NS, TIMES = 1_000_000, 10


@dataclass(frozen=True, eq=False)
class NewShapes:
    """Parallel arrays over the first calls, in order."""

    ops: Int64
    took_ns: Int64
    """The time on the host, without operators within, waits and allocations."""
    usual_ns: Int64
    step: Int64
    """The counted step in which the host made the call; -1 before the first."""

    def __len__(self) -> int:
        return len(self.ops)

    def stalls(self, measures: HostWaits) -> Intervals:
        """Return when the device was idle in these calls, and neither a wait, nor memory, nor a compiler was the
        reason."""
        ops = measures.trace.ops
        spans = Intervals.of_rows(ops, self.ops)
        return spans & (measures.idle["dispatch"] | measures.idle["launch"])


def new_shapes(measures: HostWaits) -> NewShapes:
    """First calls of a shape that took long, on the threads that train, within the counted steps."""
    ops, steps = measures.trace.ops, measures.steps
    rows = np.flatnonzero(on_threads(ops.thread, measures.training_threads) & (ops.shapes != MISSING))
    if not len(rows) or not len(steps):
        return NewShapes(*(np.empty(0, np.int64) for _ in range(4)))
    keys = np.stack([column[rows].astype(np.int64) for column in (ops.name, ops.shapes, ops.dtypes)])
    _, first = np.unique(keys, axis=1, return_index=True)
    is_first = np.zeros(len(rows), np.bool_)
    is_first[first] = True  # rows are in the order of time
    took = measures.op_tree.nesting.self_ns[rows] - _else(measures).covered(ops.start_ns[rows], ops.end_ns[rows])
    usual = _usual(ops.name[rows], took, ~is_first)
    step = np.searchsorted(steps.host_start_ns, ops.start_ns[rows], side="right") - 1
    inside = (step >= 0) & (ops.start_ns[rows] < steps.host_end_ns[-1])
    chosen = np.flatnonzero(is_first & inside & (took >= LONG_NS) & (usual >= 0) & (took >= TIMES * usual))
    return NewShapes(rows[chosen], took[chosen], usual[chosen], step[chosen])


def _else(measures: HostWaits) -> Intervals:
    """Time on the host in which a call waits for the device, or for memory: a larger tensor takes longer to copy."""
    trace = measures.trace
    allocates = named(trace.names, trace.calls.name, ALLOCATIONS)
    allocating = Intervals.of_rows(trace.calls, allocates)
    return Intervals.union((measures.waits, measures.pageable_waits, allocating))


def _usual(names: np.typing.NDArray[np.int32], took: Int64, known: np.typing.NDArray[np.bool_]) -> Int64:
    """Per row, the median of calls of its operator with shapes that were seen before; -1 where there are none."""
    result = np.full(len(names), -1, np.int64)
    for name in np.unique(names[took >= LONG_NS]).tolist():
        same = names == name
        before = took[same & known]
        if len(before):
            result[same] = int(np.median(before))
    return result
