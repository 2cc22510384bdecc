"""Some counted steps span by span: why the device idled, what its streams ran, what the threads of the host did.

gaps       |  input  |                |python|         causes of idle time; without a device, the host's own
stream 7             |mm|gelu|mm|softmax|    |mm|      by class
thread 1   |next|  forward  |  backward  |step|        ranges, then levels of operators
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.views.kernel_classes import KernelClass, class_of_op
from diagnose.measure.views.nesting import nested
from diagnose.model import Lane, Timeline
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64, RangeKind

MOST_SPANS = 12_000
"""The most spans of a timeline of several steps: what a page draws at once, and some 300 kB in a journal."""
MOST_DRAWN = 60_000
"""The most spans of a single step: beyond it, neighbours are joined."""
FINEST = 4_000
"""Parts of a timeline, as many as a wide screen has pixels: only what is shorter is ever joined."""
MOST_STEPS = 8
_MOST_STREAMS = 8
_MOST_THREADS = 3
_LEVELS = 2
"""Levels that are shown of a thread's operators."""
_PHASES = {
    RangeKind.STEP: "range",
    RangeKind.USER: "range",
    RangeKind.OPTIMIZER: "optimizer",
    RangeKind.INPUT: "input",
    RangeKind.GC: "gc",
    RangeKind.COMPILE: "compile",
    RangeKind.CHECKPOINT: "io",
    RangeKind.BACKWARD: "backward",
    RangeKind.COLLECTIVE: "collective",
}
"""Kinds of ranges and how they look; the same words as the causes of idle time where they are the same."""


_IN_BRACKETS = re.compile(r"^thread \d+ \((.+)\)$")
"""What Kineto calls a thread: `thread 1099 (pt_autograd_0)`."""


@dataclass(frozen=True, eq=False)
class _Spans:
    """A lane on the recording's clock: spans that do not overlap."""

    name: str
    kind: str
    start_ns: Int64
    end_ns: Int64
    label: Int64
    look: Int64


class _Words:
    """Texts, each once, with its number."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __getitem__(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))


def step_timeline(measures: Measures) -> Timeline | None:
    """The step of median length and as many of its neighbours as the picture bears; None without steps."""
    steps = measures.steps
    if not len(steps):
        return None
    labels, looks = _Words(), _Words()
    first, last = _chosen(measures)
    begin, end = int(steps.start_ns[first]), int(steps.end_ns[last - 1])
    lanes = list(_lanes(measures, begin, end, labels, looks))
    # The least length below which neighbours have to be joined so that all is few enough; 0 where it is
    span_ns = end - begin
    below_ns = 0
    while sum(_count(lane, below_ns) for lane in lanes) > MOST_DRAWN and below_ns < span_ns // FINEST:
        below_ns = min(below_ns * 2 or 1_000, max(span_ns // FINEST, 1))
    lanes = [_joined(lane, below_ns, labels) for lane in lanes] if below_ns else lanes
    return Timeline(
        begin_ns=begin,
        steps_ns=(0, *(steps.end_ns[first:last] - begin).tolist()),
        first_step=first,
        labels=tuple(labels.number),
        looks=tuple(looks.number),
        lanes=tuple(_relative(lane, begin) for lane in lanes),
        joined_below_ns=below_ns,
    )


def _chosen(measures: Measures) -> tuple[int, int]:
    """The steps to draw: around the one of median length, while their device work and operators are few enough."""
    steps, trace = measures.steps, measures.trace
    order = np.argsort(steps.length_ns, kind="stable")
    middle = int(order[(len(order) - 1) // 2])
    edges = np.append(steps.start_ns, steps.end_ns[-1])
    events = np.diff(np.searchsorted(trace.device.start_ns, edges)) + np.diff(
        np.searchsorted(trace.ops.start_ns, edges)
    )
    first, last = middle, middle + 1
    room = MOST_SPANS - int(events[middle])
    while last - first < MOST_STEPS:
        if last < len(steps) and events[last] <= room:
            room -= int(events[last])
            last += 1
        elif first > 0 and events[first - 1] <= room:
            first -= 1
            room -= int(events[first])
        else:
            break
    return first, last


def _lanes(measures: Measures, begin: int, end: int, labels: _Words, looks: _Words) -> Iterator[_Spans]:
    yield from _gaps(measures, begin, end, labels, looks)
    yield from _streams(measures, begin, end, labels, looks)
    yield from _threads(measures, begin, end, labels, looks)


def _gaps(measures: Measures, begin: int, end: int, labels: _Words, looks: _Words) -> Iterator[_Spans]:
    """The idle time of the device by its cause; without a device, what the host waited for instead of computing."""
    parts: list[tuple[str, Intervals]] = [(cause, times.within(begin, end)) for cause, times in measures.idle.items()]
    if not measures.has_device:
        parts.append(("compute", measures.compute.within(begin, end)))
    parts = [(cause, times) for cause, times in parts if len(times)]
    if not parts:
        return
    starts = np.concatenate([times.starts for _, times in parts])
    ends = np.concatenate([times.ends for _, times in parts])
    label = np.concatenate([np.full(len(times), labels[cause]) for cause, times in parts])
    look = np.concatenate([np.full(len(times), looks[cause]) for cause, times in parts])
    order = np.argsort(starts, kind="stable")
    name = "idle, by cause" if measures.has_device else "host, by class"
    yield _Spans(name, "gaps", starts[order], ends[order], label[order], look[order])


def _streams(measures: Measures, begin: int, end: int, labels: _Words, looks: _Words) -> Iterator[_Spans]:
    """The busiest streams of the device, those with collectives named so."""
    trace, device = measures.trace, measures.trace.device
    rows = np.flatnonzero(measures.rows & (device.end_ns > begin) & (device.start_ns < end))
    if not len(rows):
        return
    streams, place = np.unique(device.stream[rows], return_inverse=True)
    busy = np.bincount(place, (device.end_ns - device.start_ns)[rows])
    for number in np.argsort(-busy, kind="stable")[:_MOST_STREAMS].tolist():
        mine = rows[place == number]
        talks = (measures.classes[mine] == KernelClass.COLLECTIVE).mean() > 0.5
        yield _without_overlap(
            f"stream {streams[number]}{', collectives' if talks else ''}",
            "device",
            device.start_ns[mine].clip(begin, end),
            device.end_ns[mine].clip(begin, end),
            _numbers(device.name[mine], lambda name: trace.names[name] if name >= 0 else "unnamed", labels),
            _numbers(measures.classes[mine], lambda kind: KernelClass(kind).name.lower(), looks),
        )


def _threads(measures: Measures, begin: int, end: int, labels: _Words, looks: _Words) -> Iterator[_Spans]:
    """The training threads: their ranges, then the outer levels of their operators."""
    trace = measures.trace
    ops, ranges = trace.ops, trace.ranges
    rows = np.flatnonzero((ops.end_ns > begin) & (ops.start_ns < end))
    seen = np.flatnonzero((ranges.end_ns > begin) & (ranges.start_ns < end) & (ranges.kind != RangeKind.STEP))
    busy: dict[int, int] = {}
    called_on, length = ops.thread[rows], (ops.end_ns - ops.start_ns)[rows]
    for one in np.unique(called_on).tolist():
        busy[one] = int(length[called_on == one].sum())
    for one in np.unique(ranges.thread[seen]).tolist():
        busy.setdefault(one, 0)
    threads = sorted(busy, key=lambda one: (one != measures.thread, -busy[one]))[:_MOST_THREADS]
    depth = measures.op_tree.nesting.depth
    for thread in threads:
        name = thread_name(measures, thread)
        mine = seen[ranges.thread[seen] == thread]
        if len(mine):
            level = nested(ranges.start_ns[mine], ranges.end_ns[mine], ranges.thread[mine]).depth
            outer = mine[level == 0]
            yield _without_overlap(
                f"{name}: ranges",
                "host",
                ranges.start_ns[outer].clip(begin, end),
                ranges.end_ns[outer].clip(begin, end),
                _numbers(ranges.name[outer], lambda at: trace.names[at] if at >= 0 else "range", labels),
                _numbers(ranges.kind[outer], lambda kind: _PHASES[RangeKind(kind)], looks),
            )
        own = rows[ops.thread[rows] == thread]
        for level_number in range(_LEVELS):
            called = own[depth[own] == level_number]
            if not len(called):
                break
            yield _without_overlap(
                f"{name}: operators" if level_number == 0 else f"{name}: within",
                "host",
                ops.start_ns[called].clip(begin, end),
                ops.end_ns[called].clip(begin, end),
                _numbers(ops.name[called], lambda at: trace.names[at] if at >= 0 else "unnamed", labels),
                _numbers(
                    ops.name[called],
                    lambda at: class_of_op(trace.names[at]).name.lower() if at >= 0 else "other",
                    looks,
                ),
            )


def thread_name(measures: Measures, thread: int) -> str:
    """What a thread of the host (a row of `trace.threads`) is called on the timeline."""
    if thread == measures.thread:
        return "main"
    if not 0 <= thread < len(measures.trace.threads):
        return "host"
    known = measures.trace.threads[thread]
    named = _IN_BRACKETS.search(known.name)
    return named[1] if named else known.name or f"thread {known.tid}"


def _numbers(values: np.typing.NDArray[np.integer], text: Callable[[int], str], words: _Words) -> Int64:
    """Per value the number of its text."""
    kinds, place = np.unique(values, return_inverse=True)
    numbers: Int64 = np.asarray([words[text(int(kind))] for kind in kinds.tolist()], np.int64)
    return np.asarray(numbers[place.ravel()], np.int64)


def _without_overlap(name: str, kind: str, start: Int64, end: Int64, label: Int64, look: Int64) -> _Spans:
    """In order; what begins before the one before it has ended is cut at that end."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    until = np.maximum.accumulate(end)
    start = np.maximum(start, np.append(start[:1], until[:-1])) if len(start) else start
    kept = end > start
    return _Spans(name, kind, start[kept], end[kept], label[order][kept], look[order][kept])


def _groups(lane: _Spans, below_ns: int) -> Int64:
    """The first span of each group of neighbours that are joined: each short, and no more than that apart."""
    if not len(lane.start_ns):
        return np.empty(0, np.int64)
    short = (lane.end_ns - lane.start_ns) < below_ns
    close = (lane.start_ns[1:] - lane.end_ns[:-1]) < below_ns
    # No group is much longer than that either: it would hide the gaps within it.
    part = lane.start_ns // (4 * below_ns)
    together = short[1:] & short[:-1] & close & (part[1:] == part[:-1])
    return np.flatnonzero(np.append(True, ~together))


def _count(lane: _Spans, below_ns: int) -> int:
    return len(_groups(lane, below_ns)) if below_ns else len(lane.start_ns)


def _joined(lane: _Spans, below_ns: int, labels: _Words) -> _Spans:
    """A lane whose short neighbours are one span, which says how many they are."""
    first = _groups(lane, below_ns)
    if not len(first):
        return lane
    sizes = np.diff(np.append(first, len(lane.start_ns)))
    words = list(labels.number)
    label = [
        at if size == 1 else labels[f"{words[at]} and {size - 1:,} more"]
        for at, size in zip(lane.label[first].tolist(), sizes.tolist(), strict=True)
    ]
    ends = lane.end_ns[first + sizes - 1]
    length = lane.end_ns - lane.start_ns
    longest = np.asarray([at + int(length[at : at + size].argmax()) for at, size in zip(first, sizes, strict=True)])
    look = lane.look[longest]
    return _Spans(lane.name, lane.kind, lane.start_ns[first], ends, np.asarray(label, np.int64), look)


def _relative(lane: _Spans, begin: int) -> Lane:
    return Lane(
        lane.name,
        lane.kind,
        tuple((lane.start_ns - begin).tolist()),
        tuple((lane.end_ns - lane.start_ns).tolist()),
        tuple(lane.label.tolist()),
        tuple(lane.look.tolist()),
    )
