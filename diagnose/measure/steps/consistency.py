"""Contradictions in a recording: kernels before their launch, launches without kernels, times that jump.

    for violation in check(trace):
        violation.sentence      # for the user
        violation.doubt         # the time whose cause is less than proven because of it

Nothing is repaired here and nothing raises: a violation lowers what may be claimed of the time that it touches. What is
normal at the edges of a recording (work launched before it began, work not yet done when it ended) is no violation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from diagnose.measure.views.kernel_classes import KernelClass, classes_of
from diagnose.measure.views.launches import Launches, launches_of
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int64, WaitKind, WorkKind
from diagnose.units import NS_PER_S, NS_PER_US, format_ns, format_share

_LAUNCHES = re.compile(r"^(cuda|hip|cu|hipExt|hipModule|hipExtModule|cuda\w*)LaunchKernel|^(cuda|hip)LaunchCooperative")
_GRAPHS = re.compile(r"Graph")
_CAPTURES = re.compile(r"StreamBeginCapture|GraphInstantiate|StreamEndCapture")
_EVALUATES = re.compile(r"^autograd::engine::evaluate_function: ")

_RECORDS = re.compile(r"^(cuda|cu|hip)EventRecord")

_CLOCKS_NS = NS_PER_US
"""Host and device clocks are put together with an error of about this much: a kernel may seem this early."""
_TOLERATED = 0.005
"""A violation on a smaller share of what was checked is left unsaid: it moves no figure that is said."""
_HOLE_NS = NS_PER_S
_EVERY_STREAM = -2
"""Stands for the streams of a device that is waited for; -1 is a stream of which nothing is known."""


@dataclass(frozen=True, eq=False)
class Violation:
    """Something that holds in every sound recording and not in this one."""

    name: str
    count: int
    share: float
    """The share of what was checked (0 to 1)."""
    sentence: str
    doubt: Intervals
    """The stretches of time of which the cause is less than proven."""


def check(trace: Trace) -> tuple[Violation, ...]:
    """Return the contradictions of a recording, in a fixed order; empty where all checks pass."""
    view = _View(trace, launches_of(trace), Intervals.of(trace.device.start_ns, trace.device.end_ns))
    return tuple(found for one in _CHECKS if (found := one(view)) is not None)


@dataclass(frozen=True, eq=False)
class _View:
    trace: Trace
    launches: Launches
    busy: Intervals

    def gaps_before(self, rows: Int64) -> Intervals:
        """The idle time that rows of device work end."""
        starts = self.trace.device.start_ns[rows]
        at = np.searchsorted(self.busy.starts, starts)
        inside = (at > 0) & (at < len(self.busy))
        at, starts = at[inside], starts[inside]
        at = at[self.busy.starts[at] == starts]
        return Intervals.of(self.busy.ends[at - 1], self.busy.starts[at])

    def gaps_at(self, times: Int64) -> Intervals:
        """The idle time in which some moments lie."""
        at = np.searchsorted(self.busy.starts, times, side="right")
        inside = (at > 0) & (at < len(self.busy))
        at = at[inside]
        return Intervals.of(self.busy.ends[at - 1], self.busy.starts[at])


def _kernels_before_launch(view: _View) -> Violation | None:
    linked = view.launches.linked
    early = view.launches.start_ns - view.trace.device.start_ns
    rows = np.flatnonzero(linked & (early > _CLOCKS_NS))
    most = format_ns(int(early[rows].max(initial=0)))
    starts = view.trace.device.start_ns[rows]
    return _violation(
        "kernel-before-launch",
        len(rows),
        int(linked.sum()),
        f"{{count}} kernels and copies ({{share}}) begin before the call that launched them, by "
        f"up to {most}: the clocks of host and device disagree by that much, and causes of idle time are off by it",
        Intervals.of(starts - early[rows], starts) & view.gaps_before(rows),
    )


def _work_without_launch(view: _View) -> Violation | None:
    """Work without a launch once linked work has begun: its launch was dropped, or was never recorded."""
    trace, linked = view.trace, view.launches.linked
    if not len(trace.calls) or not linked.any():
        return None
    begun = trace.device.start_ns >= trace.device.start_ns[linked].min()
    rows = np.flatnonzero(begun & ~linked)
    return _violation(
        "work-without-launch",
        len(rows),
        int(begun.sum()),
        "of {count} kernels and copies ({share}) the launch is not recorded: records were "
        "dropped, or a library launched them unseen; what the host did before them is unknown",
        view.gaps_before(rows),
    )


def _launches_without_work(view: _View) -> Violation | None:
    """Launches without a kernel, although later launches have theirs. While a graph is captured there is none."""
    trace = view.trace
    kernels = trace.device.correlation[trace.device.kind == WorkKind.KERNEL]
    rows = np.flatnonzero(named(trace.names, trace.calls.name, _LAUNCHES) & (trace.calls.correlation > 0))
    if not len(kernels) or not len(rows) or named(trace.names, trace.calls.name, _CAPTURES).any():
        return None
    found = np.isin(trace.calls.correlation[rows], kernels)
    if not found.any():
        return None
    starts = trace.calls.start_ns[rows]
    inside = (starts >= starts[found].min()) & (starts <= starts[found].max())
    rows = rows[inside & ~found]
    return _violation(
        "launch-without-kernel",
        len(rows),
        int(inside.sum()),
        "{count} launches ({share}) have no kernel although later ones do: the profiler dropped "
        "records, so some of the idle time may have been work",
        view.gaps_at(trace.calls.end_ns[rows]),
    )


def _repeated_correlations(view: _View) -> Violation | None:
    """Several calls with the id of one piece of work."""
    trace = view.trace
    ids = np.sort(trace.calls.correlation[trace.calls.correlation > 0], kind="stable")
    twice = ids[1:][ids[1:] == ids[:-1]]
    rows = np.flatnonzero(np.isin(trace.device.correlation, twice))
    return _violation(
        "repeated-correlation",
        len(rows),
        len(trace.device),
        "{count} kernels and copies ({share}) have the correlation id of several calls: which launched them is a guess",
        view.gaps_before(rows),
    )


def _several_kernels_of_one_launch(view: _View) -> Violation | None:
    trace = view.trace
    call = view.launches.call
    plain = (trace.device.kind == WorkKind.KERNEL) & (call != MISSING) & (trace.device.graph == MISSING)
    if len(trace.calls):
        plain &= ~named(trace.names, trace.calls.name, _GRAPHS)[np.maximum(call, 0)]
    rows = np.flatnonzero(plain)
    _, first, counts = np.unique(call[rows], return_index=True, return_counts=True)
    many = int((counts - 1).sum())
    extra = np.setdiff1d(rows, rows[first])
    return _violation(
        "several-kernels-of-a-launch",
        many,
        len(rows),
        "{count} kernels ({share}) share the launch of another outside of any graph: they were recorded "
        "twice, or their launches were lost",
        view.gaps_before(extra),
    )


def _collectives_without_description(view: _View) -> Violation | None:
    """Collectives without kind, size and group, in a recording that has them for others."""
    trace = view.trace
    collective = classes_of(trace) == KernelClass.COLLECTIVE
    described = collective & (trace.device.collective != MISSING)
    if not described.any():
        return None
    known = np.array([*(one.size_bytes >= 0 and one.group_size > 0 for one in trace.collectives), False], np.bool_)
    lacking = collective & ~known[trace.device.collective]
    # Those launched before the recording began never have a description.
    lacking &= trace.device.start_ns >= trace.device.start_ns[described].min()
    count = int(lacking.sum())
    return _violation(
        "collective-without-description",
        count,
        int(collective.sum()),
        "{count} collectives ({share}) do not say what they move in which group, though others do: "
        "sums over collectives are too small by them",
        Intervals.empty(),
    )


def _shared_sequence_numbers(view: _View) -> Violation | None:
    """Autograd nodes of different kinds with one number: forward and backward cannot be matched there."""
    trace = view.trace
    ops = trace.ops
    rows = np.flatnonzero(named(trace.names, ops.name, _EVALUATES) & (ops.sequence >= 0))
    if not len(rows):
        return None
    # Numbers count per thread of the forward pass.
    pairs = np.unique(np.stack((ops.forward_thread[rows], ops.sequence[rows], ops.name[rows])), axis=1)
    _, kinds = np.unique(pairs[:2], axis=1, return_counts=True)
    count = int((kinds > 1).sum())
    return _violation(
        "shared-sequence-number",
        count,
        len(kinds),
        "{count} autograd sequence numbers ({share}) belong to several kinds of backward operators: "
        "which forward operator they differentiate is a guess",
        Intervals.empty(),
    )


def _waits_without_record(view: _View) -> Violation | None:
    """Waits for an event of which neither record nor stream is known, although events were recorded before."""
    waits = view.trace.waits
    records = view.trace.calls.start_ns[named(view.trace.names, view.trace.calls.name, _RECORDS)]
    for_event = (waits.kind == WaitKind.STREAM_FOR_EVENT) | (waits.kind == WaitKind.HOST_FOR_EVENT)
    if not len(records) or not for_event.any():
        return None
    # What was recorded before the recording began is never known.
    for_event &= waits.start_ns >= records.min()
    rows = np.flatnonzero(for_event & (waits.wait_on_correlation < 0) & (waits.wait_on_stream < 0))
    return _violation(
        "wait-without-record",
        len(rows),
        int(for_event.sum()),
        "{count} waits for events ({share}) do not say where the event was recorded: what they waited for is unknown",
        view.gaps_at(waits.end_ns[rows]),
    )


def _waits_for_later_records(view: _View) -> Violation | None:
    """A stream that waits for an event which is recorded only afterwards."""
    waits, calls = view.trace.waits, view.trace.calls
    records = np.flatnonzero(named(view.trace.names, calls.name, _RECORDS) & (calls.correlation >= 0))
    rows = np.flatnonzero((waits.kind == WaitKind.STREAM_FOR_EVENT) & (waits.wait_on_correlation >= 0))
    if not len(records) or not len(rows):
        return None
    ids, first = np.unique(calls.correlation[records], return_index=True)
    at = np.minimum(np.searchsorted(ids, waits.wait_on_correlation[rows]), len(ids) - 1)
    known = ids[at] == waits.wait_on_correlation[rows]
    rows, recorded = rows[known], calls.start_ns[records[first[at[known]]]]
    checked = len(rows)
    rows = rows[recorded - waits.start_ns[rows] > _CLOCKS_NS]
    return _violation(
        "wait-for-later-record",
        len(rows),
        checked,
        "{count} waits of streams ({share}) name an event that is recorded only later: they waited for another one",
        view.gaps_at(waits.end_ns[rows]),
    )


def _syncs_that_return_early(view: _View) -> Violation | None:
    """The host waited for a stream or a device; work that was launched there before still runs when that is over."""
    waits, device = view.trace.waits, view.trace.device
    whole = waits.kind == WaitKind.HOST_FOR_DEVICE
    syncs = np.flatnonzero(whole | ((waits.kind == WaitKind.HOST_FOR_STREAM) & (waits.stream >= 0)))
    streams = np.where(whole, _EVERY_STREAM, waits.stream.astype(np.int64))[syncs]
    early = np.zeros(len(syncs), np.bool_)
    for place, stream in np.unique(np.stack((waits.device[syncs], streams)), axis=1).T.tolist():
        mine = (waits.device[syncs] == place) & (streams == stream)
        there = (device.device == place) & ((device.stream == stream) | (stream == _EVERY_STREAM))
        work = np.flatnonzero(there & view.launches.linked)
        if not len(work):
            continue
        work = work[np.argsort(view.launches.end_ns[work], kind="stable")]
        reach = np.maximum.accumulate(device.end_ns[work])
        last = np.searchsorted(view.launches.end_ns[work], waits.start_ns[syncs[mine]], side="right") - 1
        early[mine] = (last >= 0) & (reach[np.maximum(last, 0)] > waits.end_ns[syncs[mine]] + 2 * _CLOCKS_NS)
    rows = syncs[early]
    return _violation(
        "sync-before-end",
        len(rows),
        len(syncs),
        "{count} waits of the host for a stream or the device ({share}) end while work launched "
        "before still runs there: the clocks of host and device disagree, or the stream is another one",
        view.gaps_at(waits.end_ns[rows]),
    )


def _holes(view: _View) -> Violation | None:
    """A stretch without any event that is longer than all the rest: a clock set, recordings joined, or a pause."""
    trace = view.trace
    events = [table for table in (trace.device, trace.calls, trace.ops, trace.frames) if len(table)]
    if not events:
        return None
    # Short gaps are closed table by table: tables are sorted, all events together would have to be.
    spans = [Intervals.of(one.start_ns, one.end_ns + 1).joined(_HOLE_NS) for one in events]
    ranges = Intervals.of(trace.ranges.start_ns, trace.ranges.end_ns + 1).joined(_HOLE_NS)
    # A live run notes ranges long before it is traced, such as a garbage collection here and there.
    ranges = ranges.within(min(int(one.starts[0]) for one in spans), max(int(one.ends[-1]) for one in spans))
    recorded = Intervals.union((*spans, ranges))
    if len(recorded) < 2:
        return None
    gaps = recorded.gaps(int(recorded.starts[0]), int(recorded.ends[-1]))
    longest = gaps.lengths_ns.argmax()
    length = int(gaps.lengths_ns[longest])
    rest = int(recorded.ends[-1] - recorded.starts[0]) - length
    if length <= max(_HOLE_NS, rest):
        return None
    return Violation(
        "clock-jump",
        1,
        length / (length + rest),
        f"for {format_ns(length)} nothing at all is recorded, which is longer than all the rest ({format_ns(rest)}): a "
        "clock jumped, two recordings were joined, or the program stood still",
        Intervals.of(gaps.starts[[longest]], gaps.ends[[longest]]),
    )


_CHECKS: tuple[Callable[[_View], Violation | None], ...] = (
    _kernels_before_launch,
    _work_without_launch,
    _launches_without_work,
    _repeated_correlations,
    _several_kernels_of_one_launch,
    _collectives_without_description,
    _shared_sequence_numbers,
    _waits_without_record,
    _waits_for_later_records,
    _syncs_that_return_early,
    _holes,
)


def _violation(name: str, count: int, checked: int, sentence: str, doubt: Intervals) -> Violation | None:
    """The violation, with its count and share in the sentence; None on a share so small that it is tolerated."""
    share = count / checked if checked else 0.0
    if share <= _TOLERATED:
        return None
    return Violation(name, count, share, sentence.format(count=count, share=format_share(share)), doubt)
