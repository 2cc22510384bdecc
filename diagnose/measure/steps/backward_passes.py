"""Backward passes, as the host issued them.

Autograd gives every operator of the forward pass a number that only grows, and works through them from the last one
back. A pass therefore begins with a number higher than any of the passes before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Int64, RangeKind

_EVALUATED = re.compile(r"^autograd::engine::evaluate_function: ")


_OF_OPTIMIZERS = re.compile(r"optimizer|multi_tensor_apply|_fused_(adam|sgd|adagrad)|_foreach_(?!copy_)", re.IGNORECASE)
_OF_TRAINING = re.compile(r"backward|bwd|dgrad|wgrad|optimizer|multi_tensor_apply", re.IGNORECASE)
"""Names of operators, kernels and ranges of a backward pass or of an optimizer."""


@dataclass(frozen=True, eq=False)
class BackwardPasses:
    """Pass i was issued from start_ns[i] to end_ns[i], on the host's clock; passes do not overlap."""

    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    def begun_by(self, times_ns: Int64) -> Int64:
        """Return how many passes have begun by each moment."""
        return np.searchsorted(self.start_ns, times_ns, side="right")

    def holding(self, times_ns: Int64) -> Int64:
        """The pass that each moment lies in, or -1."""
        last = self.begun_by(times_ns) - 1
        if not len(self):
            return last
        return np.where((last >= 0) & (times_ns < self.end_ns[np.maximum(last, 0)]), last, MISSING)


def backward_passes(trace: Trace) -> BackwardPasses:
    """The passes of a trace; none where neither autograd's operators nor annotations were recorded."""
    rows = np.flatnonzero(named(trace.names, trace.ops.name, _EVALUATED))
    if not len(rows):
        marked = trace.ranges.where(trace.ranges.kind == RangeKind.BACKWARD).sorted_by_start()
        outer = np.concatenate(([True], marked.end_ns[1:] > np.maximum.accumulate(marked.end_ns)[:-1]))
        marked = marked.where(outer[: len(marked)])
        return BackwardPasses(marked.start_ns, marked.end_ns)
    ops = trace.ops.where(rows)
    counted = ops.sequence != MISSING
    if counted.any():
        # Checkpointing recomputes on autograd's own thread, which counts for itself.
        forward = ops.forward_thread[counted]
        values, count = np.unique(forward, return_counts=True)
        counted[counted] = forward == values[count.argmax()]
    number = np.where(counted, ops.sequence, MISSING)
    highest = np.maximum.accumulate(number)
    begins = np.concatenate(([True], number[1:] > highest[:-1]))
    begins[1:] &= counted[1:] & (highest[:-1] != MISSING)
    first = np.flatnonzero(begins)
    return BackwardPasses(ops.start_ns[first], np.maximum.reduceat(ops.end_ns, first))


def only_infers(trace: Trace) -> bool:
    """Whether operators were recorded, and neither a backward pass nor an optimizer among what was."""
    backward = (trace.ranges.kind == RangeKind.BACKWARD).any()
    return lacks_optimizer(trace) and not backward and not _is_named(trace, _OF_TRAINING)


def lacks_optimizer(trace: Trace) -> bool:
    """Whether operators were recorded, and no optimizer among what was."""
    if not len(trace.ops) or any(site.kind == "optimizer" for site in trace.sites):
        return False
    return not (trace.ranges.kind == RangeKind.OPTIMIZER).any() and not _is_named(trace, _OF_OPTIMIZERS)


def _is_named(trace: Trace, pattern: re.Pattern[str]) -> bool:
    """Whether an operator, a kernel or a range has such a name; Python's functions have all kinds of names."""
    used = np.unique(np.concatenate((trace.ops.name, trace.device.name, trace.ranges.name)))
    return any(pattern.search(trace.names[name]) for name in used[used >= 0].tolist())
