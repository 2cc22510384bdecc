"""Which device work `optimizer.step` launched: the names of its kernels are those of any other arithmetic."""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.launch import Launches
from diagnose.measure.named import named
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, RangeKind

_BACKWARD = re.compile(r"^autograd::engine::evaluate_function")


def launched_by_optimizer(trace: Trace, launches: Launches) -> Bool:
    """Per row of device work, whether it was launched within `optimizer.step`, on its thread.

    A step that runs a backward pass (a closure, as L-BFGS takes) is the whole training step, and left out.
    """
    result = np.zeros(len(trace.device), np.bool_)
    ranges = np.flatnonzero(trace.ranges.kind == RangeKind.OPTIMIZER)
    linked = np.flatnonzero(launches.linked)
    if not len(ranges) or not len(linked):
        return result
    starts, ends = trace.ranges.start_ns[ranges], trace.ranges.end_ns[ranges]
    backward = np.sort(trace.ops.start_ns[named(trace.names, trace.ops.name, _BACKWARD)])
    plain = ranges[np.searchsorted(backward, starts) == np.searchsorted(backward, ends)]
    threads = trace.calls.thread[launches.call[linked]]
    for thread in np.unique(trace.ranges.thread[plain]).tolist():
        own = plain[trace.ranges.thread[plain] == thread]
        steps = Intervals.of(trace.ranges.start_ns[own], trace.ranges.end_ns[own])
        here = linked if thread < 0 else linked[threads == thread]
        result[here] |= steps.contains(launches.start_ns[here])
    return result
