"""What the host did while the steps passed, at which lines, and the replay of what waits for what."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from diagnose.measure.lines.device_reads import value_reads
from diagnose.measure.lines.framework_python import framework_python
from diagnose.measure.lines.host_ops import HostOps, host_computing
from diagnose.measure.lines.line_attribution import places_of, ranked_places
from diagnose.measure.lines.line_trace import FollowedLines, followed_lines
from diagnose.measure.replay.host import training_threads
from diagnose.measure.replay.overhead import LEAST_LEFT
from diagnose.measure.replay.replay import Replay
from diagnose.measure.steps.consistency import Violation, check
from diagnose.measure.steps.idle import ISSUE_NS, LATENCY_NS, REFILL_NS
from diagnose.measure.steps.timeline import Timeline
from diagnose.measure.views.host_activity import calls_of, loading, on_threads, ops_of, pageable_waits_of, waits_of
from diagnose.measure.views.launches import launch_cost_ns, queue_depth
from diagnose.measure.views.stacks import saw_library_loader
from diagnose.model import Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

_KNOWN_SHARE = 0.5
"""Of some time: below it, most passed in steps that do something else than the one whose lines were followed."""


class HostSide(Timeline):
    """A timeline with what the host did."""

    @cached_property
    def followed(self) -> FollowedLines:
        """The lines that the training thread went through in the counted steps, where the run followed them."""
        return followed_lines(self.trace, self.thread, self.steps)

    def places(self, intervals: Intervals, cause: str | None = None) -> tuple[Place, ...]:
        """The lines of source that some time belongs to, the biggest share first; empty where nothing tells.

        Lines that were followed tell best, but not of waits for data or files, which differ from step to step. Given
        the `cause`, samples of the whole recording help out where too few fall into the intervals.
        """
        if self.followed and cause in (None, "python", "sync", "gc"):
            shares = self.followed.shares(intervals)
            if shares.total() >= _KNOWN_SHARE * intervals.total_ns:
                return ranked_places(shares, self.trace)
        return places_of(self.trace, intervals, cause, self.training_threads)

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
    def wait_calls(self) -> Int64:
        """Rows of `trace.calls` with which training waits for the device, within the host's counted steps."""
        calls = self.trace.calls
        mine = waits_of(self.trace) & on_threads(calls.thread, self.training_threads)
        if self.step_count == 0:
            return np.empty(0, np.int64)
        start, end = self.steps.host_start_ns[0], self.steps.host_end_ns[-1]
        return np.flatnonzero(mine & (calls.start_ns >= start) & (calls.start_ns < end))

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
    def python_stalls(self) -> Intervals:
        """Idle time in the program's Python, of stretches too long to be the Python around one operator."""
        long = self.idle["python"].at_least(REFILL_NS)
        return (long - framework_python(self.trace, self.thread, long)).at_least(REFILL_NS)

    @cached_property
    def host_computing(self) -> HostOps:
        """Idle time in which the processor computes what the device could."""
        return host_computing(self)

    @cached_property
    def issue_gaps(self) -> Intervals:
        """Idle time in which the host was issuing work: dispatch, launch calls, its Python, and the latency after."""
        dependency, launch = self.idle["dependency"], self._brisk(self.idle["launch"])
        follows = np.isin(dependency.starts, launch.ends, assume_unique=True) & (dependency.lengths_ns <= LATENCY_NS)
        latency = Intervals(dependency.starts[follows], dependency.ends[follows])
        python = self._brisk(self.idle["python"] - self.python_stalls)
        return Intervals.union((self._brisk(self.idle["dispatch"]), launch, python, latency))

    @cached_property
    def saw_library_loader(self) -> bool:
        """Whether the host was seen in a library that loads data; False where nobody looked."""
        return saw_library_loader(self.trace)

    @cached_property
    def stands_still(self) -> Intervals:
        """Idle time within operators and launch calls in which nothing is issued: a lock, or no core to run on."""
        late = self.idle["dispatch"] | self.idle["launch"]
        return late - self._brisk(self.idle["dispatch"]) - self._brisk(self.idle["launch"]) - self.host_computing.time

    def _brisk(self, pieces: Intervals) -> Intervals:
        """Without pieces in which hardly anything was issued: loading a module, starting the runtime, a lock."""
        count = np.searchsorted(self._begun, pieces.ends) - np.searchsorted(self._begun, pieces.starts)
        brisk = pieces.lengths_ns <= ISSUE_NS * (1 + count)
        return Intervals(pieces.starts[brisk], pieces.ends[brisk])

    @cached_property
    def _begun(self) -> Int64:
        """When operators and calls began."""
        # A stable sort merges what is sorted already, and both tables are.
        return np.sort(np.concatenate((self.trace.ops.start_ns, self.trace.calls.start_ns)), kind="stable")

    @cached_property
    def issuing(self) -> Intervals:
        """Host time in which threads that launch work issue it: operators and calls with the short Python between."""
        launchers = set(np.unique(self.trace.calls.thread[self.launches.call[self.launches.linked]]).tolist())
        threads = (launchers | {self.thread}) - {-1}
        calls = calls_of(self.trace, threads, np.ones(len(self.trace.calls), np.bool_))
        return (ops_of(self.trace, threads) | calls).joined(REFILL_NS) - self.waits - loading(self.trace, threads)

    @cached_property
    def issuing_ns(self) -> Int64:
        """Per step, between the host's marks, the time spent issuing work."""
        return self.issuing.covered(self.steps.host_start_ns, self.steps.host_end_ns)

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
        """How much of some time of the host went into what the profiler wrote down; 0 where it is not known."""
        if self.step_count == 0 or not self.has_device:
            return 0
        return self.replay.records.within(intervals, self.recording_scale)

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        """What the recording says that cannot be."""
        return check(self.trace)

    @cached_property
    def doubt(self) -> Intervals:
        """Time of which the cause is less than proven, because the recording contradicts itself there."""
        return Intervals.union(violation.doubt for violation in self.violations)
