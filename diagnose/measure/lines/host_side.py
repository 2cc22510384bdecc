"""The host's work during the steps, and its lines."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from diagnose.measure.lines.framework_python import framework_python
from diagnose.measure.lines.host_ops import HostOps, host_computing
from diagnose.measure.lines.line_attribution import places_of, ranked_places
from diagnose.measure.lines.line_trace import FollowedLines, followed_lines
from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.steps.consistency import Violation, check
from diagnose.measure.steps.idle import ISSUE_NS, REFILL_NS
from diagnose.measure.views.host_activity import calls_of, capturing, loading, on_threads, ops_of, waits_of
from diagnose.measure.views.stacks import saw_library_loader
from diagnose.model import Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

_KNOWN_SHARE = 0.5
"""A share of some time: below it, most passed in steps that do something else than the one whose lines were
followed."""


class HostSide(HostWaits):
    """The waits of the host with what else it did, and the lines of source that did it."""

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
    def wait_calls(self) -> Int64:
        """Rows of `trace.calls` with which training waits for the device, within the host's counted steps."""
        calls = self.trace.calls
        mine = waits_of(self.trace) & on_threads(calls.thread, self.training_threads)
        if self.step_count == 0:
            return np.empty(0, np.int64)
        start, end = self.steps.host_start_ns[0], self.steps.host_end_ns[-1]
        return np.flatnonzero(mine & (calls.start_ns >= start) & (calls.start_ns < end))

    @cached_property
    def python_stalls(self) -> Intervals:
        """Idle time in the program's Python, of stretches too long to be the Python around one operator."""
        long = (self.idle["python"] - self.capturing).at_least(REFILL_NS)
        return (long - framework_python(self.trace, self.thread, long)).at_least(REFILL_NS)

    @cached_property
    def host_computing(self) -> HostOps:
        """Idle time in which the processor computes what the device could."""
        return host_computing(self)

    @cached_property
    def capturing(self) -> Intervals:
        """Host time in which a graph is captured, and nothing is issued."""
        return capturing(self.trace)

    @cached_property
    def issue_gaps(self) -> Intervals:
        """Idle time in which the host was issuing work: dispatch, launches, and the Python around them."""
        python = self._brisk(self.idle["python"] - self.python_stalls)
        brisk = (self._brisk(self.idle[cause]) for cause in ("dispatch", "launch"))
        return Intervals.union((*brisk, python)) - self.capturing

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
        return (
            (ops_of(self.trace, threads) | calls).joined(REFILL_NS)
            - self.waits
            - loading(self.trace, threads)
            - self.capturing
        )

    @cached_property
    def issuing_ns(self) -> Int64:
        """Per step, between the host's marks, the time spent issuing work."""
        return self.issuing.covered(self.steps.host_start_ns, self.steps.host_end_ns)

    @cached_property
    def violations(self) -> tuple[Violation, ...]:
        """The contradictions in the recording."""
        return check(self.trace)

    @cached_property
    def doubt(self) -> Intervals:
        """Time of which the cause is less than proven, because the recording contradicts itself there."""
        return Intervals.union(violation.doubt for violation in self.violations)
