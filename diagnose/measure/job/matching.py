"""Which collective of one rank is which of another, and who waited for whom: from durations, not from clocks.

    matched = match_sequences([sequences_of(trace) for trace in traces])
    matched[0].wait_ns          # per collective and rank: its duration minus the shortest one

A collective begins on a rank when that rank arrives and ends on all ranks together. Recordings begin and end at other
collectives on every rank, so the ranks' sequences are shifted against each other until the kinds agree and the ends lie
a constant apart. That constant is the difference of the clocks. In recordings of real jobs the right shift leaves 0.5
to 16 µs around it, the next best one 40 µs to 7 ms.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from diagnose.measure.comm.collectives import host_rows
from diagnose.measure.views.kernel_classes import KernelClass, classes_of
from diagnose.trace import Collective, Trace
from diagnose.trace.schema import MISSING, Bool, Int64
from diagnose.units import NS_PER_US

_LONGEST_SHIFT = 512  # collectives that one rank may have recorded before another began
_SMALLEST_OVERLAP = 0.5  # of the shorter sequence
_MEAN_WEIGHT = 0.1
_AS_LITTLE = 1.5
"""Shifts that leave up to so many times the least spread are told apart by the clocks: of few collectives, on a busy
processor, a wrong shift may leave less by chance. In recordings of devices the next best leaves 2.5 times as much."""
_TOGETHER_NS = 50 * NS_PER_US
_TOGETHER_SPREADS = 10
_TOGETHER_SHARE = 0.1
"""Ends of one collective may differ by so much, by so many times the ranks' usual difference, or by this share of its
longest duration. What ends less together (a broadcast's root leaves early) says nothing about who came late."""


@dataclass(frozen=True, eq=False)
class Matched:
    """The collectives of one group of ranks: row i is the same collective on all of them."""

    group: str | None
    """The process group as the recording names it; None where it names none."""
    members: tuple[int, ...]
    """Positions in the given traces, one a column."""
    rows: Int64
    """Row of the member's `device` table (of `ranges` if it has no device), or -1 where it recorded no such row."""
    start_ns: Int64
    end_ns: Int64
    offset_ns: tuple[int, ...]
    """Per member, how far its clock is ahead of the first one's."""
    spread_ns: tuple[int, ...]
    """Per member, what that is uncertain by: the median deviation of single collectives."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def duration_ns(self) -> Int64:
        """Per collective and member; -1 where it is not recorded."""
        return np.where(self.rows == MISSING, MISSING, self.end_ns - self.start_ns)

    @cached_property
    def comparable(self) -> Bool:
        """Collectives that every member recorded and that ended on all of them together."""
        every = (self.rows != MISSING).all(axis=1)
        on_one_clock = self.end_ns - np.asarray(self.offset_ns)
        apart = np.abs(on_one_clock - np.median(on_one_clock, axis=1, keepdims=True))
        allowed = np.maximum(_TOGETHER_NS, _TOGETHER_SPREADS * np.asarray(self.spread_ns))
        allowed = np.maximum(allowed, _TOGETHER_SHARE * self.duration_ns.max(axis=1, keepdims=True))
        return np.asarray(every & (apart <= allowed).all(axis=1), np.bool_)

    @cached_property
    def wait_ns(self) -> Int64:
        """Per collective and member, how long it waited for the last one: its duration minus the shortest.

        Exact where transfers take all members equally long; -1 where the collective is not comparable.
        """
        wait = self.duration_ns - self.duration_ns.min(axis=1, keepdims=True)
        return np.where(self.comparable[:, None], wait, MISSING)

    @cached_property
    def last(self) -> Int64:
        """Per collective, the column of the member that came last; -1 where it is not comparable."""
        return np.where(self.comparable, self.duration_ns.argmin(axis=1), MISSING)


def match_sequences(sequences: Sequence[Mapping[Key, CollectiveSequence]]) -> tuple[Matched, ...]:
    """The collectives of a job, by group; groups of one rank are left out.

    `sequences` is what `sequences_of` says of each rank, once; it may have been said elsewhere.
    """
    found = []
    for key in sorted({key for one in sequences for key in one}):
        members = [member for member, one in enumerate(sequences) if key in one]
        matched = _matched(key, members, [sequences[member][key] for member in members])
        if matched is not None:
            found.append(matched)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class CollectiveSequence:
    """One rank's collectives of one group, in the order in which they ended (on the host: began)."""

    rows: Int64
    start_ns: Int64
    end_ns: Int64
    function: npt.NDArray[np.int64]
    """A number for the kernel's name, the same on every rank."""
    kind: npt.NDArray[np.int64]
    """A number for the kind of collective; -1 where the recording does not say."""
    step: Int64 | None = None
    """The step of the training that each began in, where a live run counted them from the first on."""


Key = tuple[bool, str]
"""Whether the recording names the group, and its name."""
_OF = " of ranks "


def sequences_of(trace: Trace) -> dict[Key, CollectiveSequence]:
    """The collectives of a rank by group. Where a stream names one group only, its unnamed kernels are of that group:
    what was launched before the recording began has lost its arguments. Without a device, those of the host."""
    if not trace.has_device:
        return _on_host(trace)
    rows = np.flatnonzero(classes_of(trace) == KernelClass.COLLECTIVE)
    table = trace.device
    named = np.array([*map(_group_key, trace.collectives), ""], np.str_)[table.collective[rows]]
    sequences: dict[Key, list[Int64]] = {}
    streams = np.unique(table.stream[rows])
    for number, stream in enumerate(streams.tolist()):
        mine = table.stream[rows] == stream
        groups = np.unique(named[mine & (named != "")])
        for group in groups:
            only = (len(groups) == 1) & (named == "")
            sequences.setdefault((True, str(group)), []).append(rows[mine & ((named == group) | only)])
        if not len(groups):
            sequences.setdefault((False, f"stream {number}"), []).append(rows[mine])
    return {key: _sequence(trace, np.concatenate(parts)) for key, parts in sequences.items()}


def _on_host(trace: Trace) -> dict[Key, CollectiveSequence]:
    """Ranges of gloo and MPI, whose queues begin in the same order everywhere; their groups are not recorded."""
    rows = host_rows(trace)
    if not len(rows):
        return {}
    ranges, numbers = trace.ranges, np.array([_number(name) for name in trace.names], np.int64)
    unknown = np.full(len(rows), MISSING, np.int64)
    start, counted = ranges.start_ns[rows], np.sort(trace.step_log.end_ns)
    step = np.searchsorted(counted, start) if len(counted) else None
    queued = CollectiveSequence(rows, start, ranges.end_ns[rows], numbers[ranges.name[rows]], unknown, step)
    return {(False, "host"): queued}


def _group_key(collective: Collective) -> str:
    """The group's name with its ranks: those of different ranks are different groups, however they are called."""
    if collective.members is None:
        return collective.group or ""
    return f"{collective.group or ''}{_OF}{collective.members}"


def _sequence(trace: Trace, rows: Int64) -> CollectiveSequence:
    table = trace.device
    rows = rows[np.argsort(table.end_ns[rows], kind="stable")]
    kinds = np.array([*(_number(one.kind) for one in trace.collectives), MISSING], np.int64)
    functions = np.array([*(_number(name) for name in trace.names), MISSING], np.int64)
    return CollectiveSequence(
        rows, table.start_ns[rows], table.end_ns[rows], functions[table.name[rows]], kinds[table.collective[rows]]
    )


def _number(text: str) -> int:
    return zlib.crc32(text.encode())  # the same in every process, so that sequences can travel


def _matched(key: Key, members: Sequence[int], sequences: Sequence[CollectiveSequence]) -> Matched | None:
    whole = max(sequences, key=lambda one: len(one.rows))
    shifts = [_shift(whole, one) for one in sequences]
    joined = [place for place, shift in enumerate(shifts) if shift is not None]
    if len(joined) < 2:
        return None
    first = min(shift for shift in shifts if shift is not None)
    last = max(shift + len(one.rows) for shift, one in zip(shifts, sequences, strict=True) if shift is not None)
    columns: dict[str, list[Int64]] = {"rows": [], "start_ns": [], "end_ns": []}
    for place in joined:
        for name, column in columns.items():
            filled = np.full(last - first, MISSING, np.int64)
            begin = (shifts[place] or 0) - first
            filled[begin : begin + len(sequences[place].rows)] = getattr(sequences[place], name)
            column.append(filled)
    rows, starts, ends = (np.stack(column, axis=1) for column in columns.values())
    offsets = [_offset(ends[:, 0], ends[:, column]) for column in range(len(joined))]
    return Matched(
        group=key[1].partition(_OF)[0] or None if key[0] else None,
        members=tuple(members[place] for place in joined),
        rows=rows,
        start_ns=starts,
        end_ns=ends,
        offset_ns=tuple(offset for offset, _ in offsets),
        spread_ns=tuple(spread for _, spread in offsets),
    )


def _shift(whole: CollectiveSequence, one: CollectiveSequence) -> int | None:
    """At which collective of `whole` the other sequence begins; None where the kinds agree nowhere.

    Those count at which both were in the same step of the training, if there are any. Of several shifts that leave
    about as little spread (regular jobs) the one counts that puts the clocks closest; where they are further apart than
    the recording is long, the one with the most in common.
    """
    count, least = len(one.rows), max(1, round(_SMALLEST_OVERLAP * len(one.rows)))
    candidates, in_step = [], []
    for shift in range(-min(count - least, _LONGEST_SHIFT), min(len(whole.rows) - least, _LONGEST_SHIFT) + 1):
        ours = slice(max(0, shift), min(len(whole.rows), shift + count))
        theirs = slice(max(0, -shift), max(0, -shift) + ours.stop - ours.start)
        if ours.stop - ours.start < least or not _agree(whole, ours, one, theirs):
            continue
        difference = one.end_ns[theirs] - whole.end_ns[ours]
        offset = np.median(difference)
        apart = np.abs(difference - offset)
        # The median leaves out what does not end together, the mean tells shifts of regular jobs apart.
        spread = int(np.median(apart) + _MEAN_WEIGHT * np.mean(apart)) // NS_PER_US
        unrelated = abs(offset) > whole.end_ns[-1] - whole.end_ns[0]
        candidates.append((spread, count - len(difference) if unrelated else 0, abs(int(offset)), shift))
        if whole.step is not None and one.step is not None and np.median(one.step[theirs] - whole.step[ours]) == 0:
            in_step.append(candidates[-1])
    candidates = in_step or candidates
    least = min(candidates, default=(0,))[0]
    alike = [one for one in candidates if one[0] <= _AS_LITTLE * least]
    return min(alike, key=lambda one: one[1:])[-1] if alike else None


def _agree(whole: CollectiveSequence, ours: slice, one: CollectiveSequence, theirs: slice) -> bool:
    if (whole.function[ours] != one.function[theirs]).any():
        return False
    a, b = whole.kind[ours], one.kind[theirs]
    return not ((a != b) & (a != MISSING) & (b != MISSING)).any()


def _offset(reference_ns: Int64, end_ns: Int64) -> tuple[int, int]:
    """The median difference of ends and the median deviation from it, over what both recorded."""
    both = (reference_ns != MISSING) & (end_ns != MISSING)
    difference = end_ns[both] - reference_ns[both]
    if not len(difference):
        return 0, 0
    offset = int(np.median(difference))
    return offset, int(np.median(np.abs(difference - offset)))
