"""The cost of a collective besides its own time: copies that pack and unpack it, compute that it slows, host time to
issue it.

    packing(measures, rows)         # copies that serve these collectives alone
    slowed(measures, rows, copies)  # what compute beside them would take without them
    issuing(measures, rows)         # when the host did nothing but issue them

DistributedDataParallel copies gradients into buckets and back; FSDP copies its shards together, and what it gathered
apart. Both name the operators that do so.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.views.names import named
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Float64, Int64

BESIDE = 0.25
"""The part of its rate that computing loses beside a collective, where the recording does not tell what the collective
holds of the device: NCCL's kernels hold 24 to 32 of the 132 multiprocessors of an H100 or H200 over NVLink."""

_CLUSTERS = 1.35
"""A multiprocessor that a collective holds costs more than its own share: thread blocks that are launched in pairs
lose their pair, and the collective reads and writes memory. On an H200, products beside a collective of 24 blocks (18 %
of the multiprocessors) take 1.25 to 1.41 times as long: they lose 20 to 29 %."""
_MOST_HELD = 0.5  # of the multiprocessors, at most; chosen, not measured

_EVENLY = 0.5
"""Copies and other kernels that could each fill the device, side by side, take half of each other's rate."""

_PACKING = (
    ("all_reduce", re.compile(r"reducer::mul_out"), re.compile(r"reducer::copy_bucket_to_grad")),
    ("all_gather", re.compile(r"fsdp::all_gather_copy_in"), re.compile(r"fsdp::split_with_sizes|FSDP::\S*copy_out")),
    ("reduce_scatter", re.compile(r"fsdp::chunk_cat"), re.compile(r"$^")),
)
"""Operators and ranges that pack what a kind of collective sends, and unpack what it received."""
_OWN_STREAM = re.compile(r"fsdp::all_gather_copy_in")
_AROUND = re.compile(r"^c10d::|^FSDP::(?:all_gather \(|backward_prefetch)")


def packing(measures: RankCollectives, rows: Bool) -> Bool:
    """Rows of device work that copy together what some collectives (rows of `measures.communication`) send, or apart
    what they received."""
    trace, comm = measures.trace, measures.communication
    found = np.zeros(len(trace.device), np.bool_)
    if not trace.has_device or not rows.any():
        return found
    launched, linked = measures.launches.start_ns, measures.launches.linked
    streams = np.setdiff1d(np.unique(trace.device.stream[linked & _inside(measures, _OWN_STREAM)]), _compute(measures))
    for kind, packs, unpacks in _PACKING:
        mine = _Issued(measures, rows, kind)
        before = _inside(measures, packs)
        if kind == "all_gather":
            # What fills the same stream before it (parameters cast to another format) is sent by the same collective.
            before |= np.isin(trace.device.stream, streams)
        found |= linked & before & mine.next_wanted(launched)
        found |= linked & _inside(measures, unpacks) & mine.last_wanted(launched)
    found[comm.row] = False
    return found & measures.rows & _host_counted(measures).contains(launched)


class _Issued:
    """The collectives of a kind as the host issued them, some of which are wanted."""

    def __init__(self, measures: RankCollectives, rows: Bool, kind: str) -> None:
        comm = measures.communication
        mine = np.flatnonzero(comm.kind == kind)
        mine = mine[np.argsort(comm.issued_ns[mine], kind="stable")]
        self._issued = comm.issued_ns[mine]
        self._wanted = np.concatenate(([False], rows[mine], [False]))

    def next_wanted(self, times_ns: Int64) -> Bool:
        """Whether the first one from each moment on is wanted."""
        return np.asarray(self._wanted[1 + np.searchsorted(self._issued, times_ns, side="left")], np.bool_)

    def last_wanted(self, times_ns: Int64) -> Bool:
        """Whether the last one up to each moment is wanted."""
        return np.asarray(self._wanted[np.searchsorted(self._issued, times_ns, side="right")], np.bool_)


def slowed(measures: RankCollectives, rows: Bool, copies: Bool) -> Float64:
    """Per row of device work, the part of its time that would be left if some collectives, and the copies that pack
    and unpack them, did not run beside it."""
    device, comm = measures.trace.device, measures.communication
    length = np.maximum(device.end_ns - device.start_ns, 1)
    held = held_share(measures)
    stay = Intervals.of_rows(comm, ~rows)
    lost = np.zeros(len(device))
    taken = Intervals.of_rows(device, copies)
    lost += _EVENLY * taken.covered(device.start_ns, device.end_ns)
    for share in np.unique(held[rows]).tolist():
        mine = rows & (held == share)
        beside = Intervals.of_rows(comm, mine) - stay - taken
        lost += share * beside.covered(device.start_ns, device.end_ns)
    lost[comm.row] = 0
    return np.where(measures.rows & ~copies, np.clip(1 - lost / length, 0.0, 1.0), 1.0)


def issuing(measures: RankCollectives, rows: Bool) -> Intervals:
    """Host time within operators and ranges that issue some collectives with their copies, and nothing else."""
    trace, comm = measures.trace, measures.communication
    order = np.argsort(comm.issued_ns, kind="stable")
    issued, needless = comm.issued_ns[order], np.concatenate(([0], np.cumsum(rows[order])))
    found = []
    for table in (trace.ops, trace.ranges):
        begin = np.searchsorted(issued, table.start_ns, side="left")
        end = np.searchsorted(issued, table.end_ns, side="right")
        chosen = (end > begin) & (needless[end] - needless[begin] == end - begin)
        chosen &= named(trace.names, table.name, _AROUND)
        for kind, packs, unpacks in _PACKING:
            mine = _Issued(measures, rows, kind)
            chosen |= named(trace.names, table.name, packs) & mine.next_wanted(table.start_ns)
            chosen |= named(trace.names, table.name, unpacks) & mine.last_wanted(table.start_ns)
        found.append(Intervals.of_rows(table, chosen))
    return Intervals.union(found) & _host_counted(measures)


def held_share(measures: RankCollectives) -> Float64:
    """Per row of `measures.communication`, the part of its rate that computing beside it loses."""
    comm = measures.communication
    if not measures.trace.has_device:
        return np.full(len(comm), BESIDE)
    blocks = measures.trace.device.blocks_per_sm[comm.row].astype(np.float64)
    known = blocks > 0
    return np.where(known, np.minimum(_CLUSTERS * np.round(blocks, 3), _MOST_HELD), BESIDE)


def _host_counted(measures: RankCollectives) -> Intervals:
    """The time in which the host issued the counted steps."""
    return Intervals.of(measures.steps.host_start_ns, measures.steps.host_end_ns)


def _inside(measures: RankCollectives, pattern: re.Pattern[str]) -> Bool:
    """Rows of device work that were launched within operators of some names."""
    ops = measures.trace.ops
    chosen = np.flatnonzero(named(measures.trace.names, ops.name, pattern))
    return Intervals.of_rows(ops, chosen).contains(measures.launches.start_ns)


def _compute(measures: RankCollectives) -> Int64:
    """The stream with most work other than collectives."""
    device, work = measures.trace.device, measures.rows.copy()
    work[measures.communication.row] = False
    streams, which = np.unique(device.stream[work], return_inverse=True)
    spent = np.bincount(which.reshape(-1), weights=(device.end_ns - device.start_ns)[work].astype(np.float64))
    return np.asarray(streams[spent.argmax() : spent.argmax() + 1] if len(streams) else [], np.int64)
