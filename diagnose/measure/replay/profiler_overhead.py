"""The host time that the profiler's own records cost, as far as a recording shows it.

A profiler writes down every operator, call and Python frame on the thread that runs it. The device's work lasts as long
as ever; the host needs longer for the same. How much longer was measured on programs whose step is known without a
profiler as well (torch 2.11, CUDA 13, a server with an H200; 21 recordings in which the host is the slower side, none
of them of compiled code). Constants are from the low end of what the fit gives when any program is left out:

    record                             ns      fits                 besides
    operator                           500     0 to 850             480 to 650 pass between two in C++ (10th percentile)
    its shapes, where recorded         800     300 to 1,250         200 to 350 more pass between two
    call that launches work            4,000   3,700 to 9,700       CUPTI notes the call and the kernel
    other call                         1,000   100 to 4,500
    Python frame                       300     100 to 390           140 to 270 pass between two built-in functions
    compiled kernel (Triton)           9,000   9,000 to 19,000      inductor writes out its arguments under a profiler

A recording shows how fast its host was at this: the time between two operators that one operator calls, both of them
C++, is hardly more than what the profiler needs to end one record and to begin the next. A tenth of those gaps are
shorter than `_GAP_NS`, or `_GAP_WITH_SHAPES_NS`, on the host above, give or take a third; where they are longer or
shorter than that, the host is slower or faster, and so were the records. A recording with too few of them, such as
those of other profilers, does not show what it cost: nothing is known then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.views.host_activity import on_threads
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.nesting import Nesting
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

OP_NS = 500
SHAPES_NS = 800
LAUNCH_NS = 4_000
CALL_NS = 1_000
FRAME_NS = 300
COMPILED_NS = 9_000
"""The cost per record in compiled code: the module's docstring has the measurements."""

_GAP_NS = 560
_GAP_WITH_SHAPES_NS = 830
_PERCENTILE = 10
_FEWEST = 20
"""Gaps from which the host's speed can be told."""
_COARSE_NS = 1_000
_LIKE = 4 / 3
"""Gaps of recordings on one host differ by this factor either way, and what records cost there does not go with it."""
_MOST = 2.0
"""Hosts differ by less than this factor: gaps beyond it are the program's own time."""


@dataclass(frozen=True, eq=False)
class ProfilerRecords:
    """The records that some threads made, in order, and what each cost on the host that the constants are from."""

    begun_ns: Int64
    total_ns: Int64
    """One entry more than there are records: what those before it cost together."""
    scale: float
    """How many times as much they cost on this host; 0.0 where the recording does not show it."""
    has_compiled_frames: bool = False
    """Whether Python frames are among them, and kernels of compiled code: nobody knows well what those cost."""

    def __len__(self) -> int:
        return len(self.begun_ns)

    def between(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return the cost of the records that began in `[start_ns, end_ns)`, before scaling, in ns."""
        since = np.searchsorted(self.begun_ns, start_ns, side="left")
        until = np.searchsorted(self.begun_ns, end_ns, side="left")
        return np.asarray(np.maximum(self.total_ns[until] - self.total_ns[since], 0), np.int64)

    def within(self, intervals: Intervals, scale: float) -> int:
        """Return how much of some host time went into the records of it, at most all."""
        cost = self.between(intervals.starts, intervals.ends) * scale
        return int(np.minimum(cost, intervals.lengths_ns).sum())


def records_of(trace: Trace, launches: Launches, nesting: Nesting, threads: set[int]) -> ProfilerRecords:
    """The records of operators, calls and frames on some threads; `nesting` is that of the operators."""
    ops, calls, frames = trace.ops, trace.calls, trace.frames
    launching = np.full(len(calls), CALL_NS)
    launching[launches.call[launches.linked]] = LAUNCH_NS
    compiled = np.array([*(name.startswith("triton_") for name in trace.names), False], np.bool_)[ops.name]
    of_ops = OP_NS + SHAPES_NS * (ops.shapes != MISSING) + COMPILED_NS * compiled
    begun, cost = [], []
    for column, start_ns, each in (
        (ops.thread, ops.start_ns, of_ops),
        (calls.thread, calls.start_ns, launching),
        (frames.thread, frames.start_ns, np.full(len(frames), FRAME_NS)),
    ):
        mine = on_threads(column, threads)
        begun.append(start_ns[mine])
        cost.append(each[mine])
    moments = np.concatenate(begun)
    order = np.argsort(moments, kind="stable")  # three sorted parts, which a stable sort merges
    total = np.concatenate(([0], np.cumsum(np.concatenate(cost)[order]))).astype(np.int64)
    return ProfilerRecords(moments[order], total, _scale(trace, nesting), len(frames) > 0 and bool(compiled.any()))


def _scale(trace: Trace, nesting: Nesting) -> float:
    gaps, of_shapes = _gaps(trace, nesting)
    if len(gaps) < _FEWEST:
        return 0.0
    if not (gaps % _COARSE_NS).any():
        return 1.0  # a clock of whole microseconds cannot tell
    usual = float(np.where(of_shapes, _GAP_WITH_SHAPES_NS, _GAP_NS).mean())
    slower = float(np.clip(np.percentile(gaps, _PERCENTILE) / usual, 1 / _MOST, _MOST))
    return max(slower / _LIKE, 1.0) if slower >= 1 else min(slower * _LIKE, 1.0)


def _gaps(trace: Trace, nesting: Nesting) -> tuple[Int64, Bool]:
    """The time between operators that the same operator of PyTorch's own called, one right after the other."""
    ops = trace.ops
    one, after = nesting.order[:-1], nesting.order[1:]
    parent = nesting.parent[after]
    own = np.array([*(name.startswith("aten::") for name in trace.names), False], np.bool_)[ops.name]
    here = (parent != MISSING) & (parent == nesting.parent[one])
    here &= own[np.maximum(parent, 0)] if len(ops) else here
    one, after = one[here], after[here]
    return ops.start_ns[after] - ops.end_ns[one], np.asarray(ops.shapes[after] != MISSING, np.bool_)
