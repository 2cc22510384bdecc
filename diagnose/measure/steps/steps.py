"""The counted steps of one rank: spans that tile the time exactly, on the clock of whatever did the work.

Where the host runs ahead of the device, the host's marks are not the step. A mark is projected onto the device: the
border is the end of the last device work that had been launched before the mark. Host marks are kept beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.steps.step_marks import host_marks
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.schema import Bool, Int32, Int64, WorkKind
from diagnose.units import format_ns

_OPENING = 1.1
"""A first step this much longer than every other one pays for opening the profiler, and is left out. In real traces
with three steps or more, about every fourth has one; it is longer by 10 to 100 % and mostly in launches."""

_LAUNCH = re.compile(r"^(cuda|hip|cu)(Graph|Module)?(Launch|Memcpy|Memset)")
_UNRECORDED_NS = 1_000_000
"""Work comes to the device some µs after its launch. Four recordings of serving engines begin with launches whose work
waits for 8 to 490 ms, before anything else of its stream was recorded."""
_CUT = 0.8  # a first or last step with fewer launches than this share of the usual is cut by the recording's edge


@dataclass(frozen=True, eq=False)
class StepSpans:
    """Step i is [start_ns[i], end_ns[i]); each starts where the one before ends."""

    start_ns: Int64
    end_ns: Int64
    host_start_ns: Int64
    """The host's marks of the same steps: earlier than the device's where the host runs ahead."""
    host_end_ns: Int64
    found_by: str
    """`optimizer`, `profiler marks`, `nvtx`, `period`, `whole trace`, or `none`."""
    left_out: tuple[str, ...] = ()
    """Why steps at the edges of the recording are not counted, one sentence each."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> Int64:
        """The length of each step."""
        return np.asarray(self.end_ns - self.start_ns, np.int64)


def find_steps(trace: Trace, rows: Bool, launches: Launches) -> StepSpans:
    """The steps of a trace; `rows` masks the device work that is accounted for."""
    marks = host_marks(trace)
    if marks is not None:
        border_ns = _projected(trace, rows, launches, marks.border_ns)
        # Marks between which nothing was launched end the same step: the later one is kept.
        keep = np.append(np.diff(border_ns) > 0, True)
        border, host = border_ns[keep], marks.border_ns[keep]
        steps = StepSpans(border[:-1], border[1:], host[:-1], host[1:], marks.found_by)
        steps = _without_lost_end(_without_cut_ends(steps, launches.start_ns[rows]), trace, launches)
        steps = _without_opening(steps)
        if len(steps):
            return steps
    return _by_period(trace, rows) or _whole(trace, rows, launches)


def _projected(trace: Trace, rows: Bool, launches: Launches, border_ns: Int64) -> Int64:
    if not rows.any():
        return border_ns
    launched = launches.start_ns[rows]
    order = np.argsort(launched, kind="stable")
    finished = np.maximum.accumulate(trace.device.end_ns[rows][order])
    before = np.searchsorted(launched[order], border_ns, side="left")
    border = np.where(before > 0, finished[np.maximum(before - 1, 0)], border_ns)
    return np.asarray(np.maximum.accumulate(border), np.int64)


def _without_cut_ends(steps: StepSpans, launched_ns: Int64) -> StepSpans:
    """Return the steps without a first or last one that the recording's edge cut short, as its launches show; three
    steps can tell."""
    if len(steps) < 3 or len(launched_ns) == 0:
        return steps
    launched = np.sort(launched_ns)
    count = np.searchsorted(launched, steps.host_end_ns) - np.searchsorted(launched, steps.host_start_ns)
    usual = np.median(count)
    first = 1 if count[0] < _CUT * usual else 0
    last = len(steps) - 1 if count[-1] < _CUT * usual else len(steps)
    edges = [("first", first), ("last", len(steps) - last)]
    why = tuple(f"the {edge} recorded step is not counted: the recording cuts it short" for edge, cut in edges if cut)
    return part_of(steps, first, last, why)


def _without_lost_end(steps: StepSpans, trace: Trace, launches: Launches) -> StepSpans:
    """Return the steps without a last one of which the host's launches are recorded, but not the work that the
    device did later."""
    if len(steps) < 2 or len(trace.calls) == 0:
        return steps
    made = np.flatnonzero(named(trace.names, trace.calls.name, _LAUNCH) & (trace.calls.correlation > 0))
    lost = ~np.isin(made, launches.call)
    step = np.searchsorted(steps.host_end_ns, trace.calls.start_ns[made], side="left")
    inside = (step < len(steps)) & (trace.calls.start_ns[made] >= steps.host_start_ns[0])
    launched = np.bincount(step[inside], minlength=len(steps))
    share = np.bincount(step[inside & lost], minlength=len(steps)) / np.maximum(launched, 1)
    if share[-1] <= 1 - _CUT or share[:-1].max() > 1 - _CUT:
        return steps
    return part_of(steps, 0, len(steps) - 1, ("the last recorded step is not counted: the recording cuts it short",))


def _without_opening(steps: StepSpans) -> StepSpans:
    lengths = steps.length_ns
    if len(steps) < 3 or lengths[0] <= _OPENING * lengths[1:].max():
        return steps
    ratio = float(lengths[0] / np.median(lengths[1:]))
    why = (
        f"the first recorded step is not counted: it is {ratio:.2f} times as long as the others, as where a recording "
        "begins"
    )
    return part_of(steps, 1, len(steps), (why,))


def part_of(steps: StepSpans, first: int, last: int, why: tuple[str, ...]) -> StepSpans:
    """Steps `first` up to `last`, with why the others are not counted."""
    part = slice(first, last)
    return StepSpans(
        steps.start_ns[part],
        steps.end_ns[part],
        steps.host_start_ns[part],
        steps.host_end_ns[part],
        steps.found_by,
        steps.left_out + why,
    )


def _by_period(trace: Trace, rows: Bool) -> StepSpans | None:
    kernels = np.flatnonzero(rows & (trace.device.kind == WorkKind.KERNEL))
    if len(kernels) == 0:
        return None
    streams, counts = np.unique(trace.device.stream[kernels], return_counts=True)
    main = kernels[trace.device.stream[kernels] == streams[counts.argmax()]]
    main = main[np.lexsort((trace.device.end_ns[main], trace.device.start_ns[main]))]
    border = period_starts(trace.device.name[main], trace.device.start_ns[main])
    if border is None:
        return None
    border = np.unique(border)
    return StepSpans(border[:-1], border[1:], border[:-1], border[1:], "period") if len(border) > 1 else None


def _whole(trace: Trace, rows: Bool, launches: Launches) -> StepSpans:
    tables = [table for table in (trace.ops, trace.calls) if len(table)]
    starts = [int(table.start_ns.min()) for table in tables]
    ends = [int(table.end_ns.max()) for table in tables]
    if rows.any():
        # The host may go on after the device's last work; what it does then delays nothing that was recorded.
        starts.append(int(trace.device.start_ns[rows].min()))
        ends = [int(trace.device.end_ns[rows].max())]
    if not starts or max(ends) <= min(starts):
        nothing = np.empty(0, np.int64)
        return StepSpans(nothing, nothing, nothing, nothing, "none")
    begin = _begin_of_recorded_work(trace, rows, launches, min(starts))
    left_out = f"the first {format_ns(begin - min(starts))} are not counted: launched work waited for what the device "
    left_out += "had to do before the recording"
    start, host, end = (np.array([border], np.int64) for border in (begin, min(starts), max(ends)))
    return StepSpans(start, end, host, end, "whole trace", (left_out,) if begin > min(starts) else ())


def _begin_of_recorded_work(trace: Trace, rows: Bool, launches: Launches, opens_ns: int) -> int:
    """Return when the device came to the first work of its busiest stream, where for most of the time until then it did
    nothing that is recorded, though the work had been launched; else when the recording opens."""
    known = np.flatnonzero(rows & launches.linked)
    if not len(known):
        return opens_ns
    streams, which = np.unique(trace.device.stream[known], return_inverse=True)
    length = trace.device.end_ns[known] - trace.device.start_ns[known]
    mine = known[which == np.bincount(which, weights=length, minlength=len(streams)).argmax()]
    first = int(mine[trace.device.start_ns[mine].argmin()])
    start = int(trace.device.start_ns[first])
    earlier = trace.device.end_ns[rows & (trace.device.start_ns < start)]
    idle_since = max(int(launches.end_ns[first]), int(earlier.max(initial=0)))
    return start if start - idle_since > max(_UNRECORDED_NS, (start - opens_ns) // 2) else opens_ns


_FEWEST_PERIODS = 3
_SAME = 0.98  # of the kernels must have their like one period on
_REGULAR = 0.9  # of a name's distances must be equal for it to propose a period
_SINGULAR = 0.002  # of the kernels may have a name that does not come in every period
_SHORTEST = 4  # kernels: fewer say nothing about a step


def period_of(names: Int32) -> int | None:
    """Return after how many kernels the sequence repeats, or None.

    A name that comes at regular distances proposes its distance. The period under which most kernels repeat wins, the
    shortest of equals. Layers repeat too, but what comes before and after them does not: a period is refused if some
    kernels are too rare to come once in each.
    """
    if len(names) < _FEWEST_PERIODS * _SHORTEST:
        return None
    candidates = set()
    order = np.argsort(names, kind="stable")
    borders = np.flatnonzero(np.diff(names[order])) + 1
    for places in np.split(order, borders):
        if len(places) < _FEWEST_PERIODS:
            continue
        distances = np.diff(places)
        common = int(np.median(distances))
        if common >= _SHORTEST and (distances == common).mean() >= _REGULAR:
            candidates.add(common)
    best: tuple[float, int] | None = None
    _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    for period in sorted(candidates):
        if period * _FEWEST_PERIODS > len(names):
            continue
        if (counts[inverse] < len(names) // period - 1).mean() > _SINGULAR:
            continue
        same = float((names[period:] == names[:-period]).mean())
        if same >= _SAME and (best is None or same > best[0] + 1e-9):
            best = (same, period)
    return None if best is None else best[1]


def period_starts(names: Int32, start_ns: Int64) -> Int64 | None:
    """Return when each period begins, from the first kernel on; the last one only closes the period before it."""
    period = period_of(names)
    return None if period is None else start_ns[::period]
