"""Which device work `optimizer.step` launched: the names of its kernels are those of any other arithmetic.

A step may call a closure that runs the forward and the backward pass, as L-BFGS needs it and Lightning gives to every
optimizer. Only what comes after those passes is the step's own.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64, RangeKind

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function")


def own_starts_ns(trace: Trace, ranges: Int64) -> Int64:
    """Return when what each step does itself begins, by its row of ranges: after the last backward operator within
    it."""
    starts, ends = trace.ranges.start_ns[ranges], trace.ranges.end_ns[ranges]
    backward = np.sort(trace.ops.end_ns[named(trace.names, trace.ops.name, _BACKWARD)])
    if not len(backward):
        return starts
    last = np.searchsorted(backward, ends, side="right") - 1
    return np.where(last >= 0, np.maximum(starts, backward[np.maximum(last, 0)]), starts)


def launched_by_optimizer(trace: Trace, launches: Launches) -> Bool:
    """Per row of device work, whether it was launched by `optimizer.step` itself, on its thread."""
    result = np.zeros(len(trace.device), np.bool_)
    ranges = np.flatnonzero(trace.ranges.kind == RangeKind.OPTIMIZER)
    linked = np.flatnonzero(launches.linked)
    if not len(ranges) or not len(linked):
        return result
    starts = own_starts_ns(trace, ranges)
    threads = trace.calls.thread[launches.call[linked]]
    for thread in np.unique(trace.ranges.thread[ranges]).tolist():
        own = trace.ranges.thread[ranges] == thread
        steps = Intervals.of(starts[own], trace.ranges.end_ns[ranges][own])
        here = linked if thread < 0 else linked[threads == thread]
        result[here] |= steps.contains(launches.start_ns[here])
    return result
