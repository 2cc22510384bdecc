"""The waits of one rank's host, and the replay of its steps."""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from diagnose.measure.kernels.device_work import DeviceWork
from diagnose.measure.replay.host import training_threads
from diagnose.measure.replay.overhead import LEAST_LEFT
from diagnose.measure.replay.replay import Replay
from diagnose.measure.views.host_activity import calls_of, loading, on_threads, pageable_waits_of, waits_of
from diagnose.measure.views.launches import launch_cost_ns, queue_depth
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64


class HostWaits(DeviceWork):
    """The work of the device with the waits of the host, and the replay of both."""

    @cached_property
    def training_threads(self) -> frozenset[int]:
        """The training thread, and those that take turns with it: autograd runs backward passes on its own."""
        return frozenset(training_threads(self.trace, self.launches, self.thread))

    @cached_property
    def waits(self) -> Intervals:
        """Time in which training waited for the device in a call."""
        return calls_of(self.trace, self.training_threads, waits_of(self.trace))

    @cached_property
    def pageable_waits(self) -> Intervals:
        """Time in calls that copy from pageable memory to the device, and in the waits that directly follow them."""
        return pageable_waits_of(self.trace, self.thread)

    @cached_property
    def value_reads(self) -> Intervals:
        """Time of training in operators that read a value or a size of the device, waits in it included."""
        mine = waits_of(self.trace) & on_threads(self.trace.calls.thread, self.training_threads)
        return value_reads(self.trace, self.op_tree, mine)

    @cached_property
    def host_work_ns(self) -> Int64:
        """Per step, what the host spent between its marks without waiting for the device or for data."""
        idle = self.waits | loading(self.trace, {self.thread})
        starts, ends = self.steps.host_start_ns, self.steps.host_end_ns
        return np.asarray(ends - starts - idle.covered(starts, ends), np.int64)

    @cached_property
    def queue_depth(self) -> Int64:
        """Per row of device work: how much work was launched and not yet begun when it was launched."""
        return queue_depth(self.trace, self.launches)

    @cached_property
    def launch_cost_ns(self) -> int | None:
        """The median time that launching a kernel takes the host; None where no launch is known."""
        return launch_cost_ns(self.trace, self.launches)

    @cached_property
    def replay(self) -> Replay:
        """The counted steps, to be replayed with something changed."""
        return Replay(self.trace, self.launches, self.rows, self.steps, self.thread, self.op_tree)

    @cached_property
    def recording_ns(self) -> Int64:
        """Per step, between the host's marks, what the profiler's records cost the threads that issue work.

        Zeros where the recording does not show what it cost (`measure.replay.profiler_overhead`).
        """
        if self.step_count == 0 or not self.has_device:
            return np.zeros(self.step_count, np.int64)
        records, scale = self.replay.records, self.recording_scale
        starts, ends = self.steps.host_start_ns, self.steps.host_end_ns
        most = (self.host_work_ns * (1 - LEAST_LEFT)).astype(np.int64)
        return np.minimum((records.between(starts, ends) * scale).astype(np.int64), np.maximum(most, 0))

    @cached_property
    def recording_scale(self) -> float:
        """How many times the usual cost the profiler's records had on this host; 0.0 where it is not known."""
        return self.replay.recording_scale or self.replay.records.scale

    def host_excess_ns(self, intervals: Intervals) -> int:
        """Return how much of some time of the host went into what the profiler wrote down; 0 where it is not known."""
        if self.step_count == 0 or not self.has_device:
            return 0
        return self.replay.records.within(intervals, self.recording_scale)


_READS = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|nonzero_numpy|equal)$")
_DEEPEST = 4
"""`aten::is_nonzero` calls `aten::item`, which calls `aten::_local_scalar_dense`: more do not lie in each other."""


def value_reads(trace: Trace, tree: OpTree, waits: Bool) -> Intervals:
    """The time of the outermost operators that bring a value, or a size that depends on one, to the host, around
    calls that wait (a mask over `trace.calls`).
    """
    if len(trace.ops) == 0 or not waits.any():
        return Intervals.empty()
    reads = named(trace.names, trace.ops.name, _READS)
    at = tree.of_call[waits]
    at = np.unique(at[at != MISSING])
    at = at[reads[at]]
    for _ in range(_DEEPEST):
        above = tree.nesting.parent[at]
        at = np.where((above != MISSING) & reads[above], above, at)
    return Intervals.of_rows(trace.ops, at)
