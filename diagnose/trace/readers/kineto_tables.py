"""Columns that grow chunk by chunk while a Kineto document streams by: one set of tables for each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.trace.readers.kineto_events import Args, Scalar, X
from diagnose.trace.readers.kineto_meaning import Lane, collective_of, copy_path, is_mark, lane_of
from diagnose.trace.readers.kineto_time import UNREADABLE, nanoseconds
from diagnose.trace.schema import MISSING, DeviceWork, Frames, HostCalls, Int64, Ops, Ranges, Table, WorkKind

_DEVICE_KINDS = {Lane.KERNEL: WorkKind.KERNEL, Lane.COPY: WorkKind.COPY, Lane.SET: WorkKind.SET}


class Interned(dict[Any, int]):
    """Gives every new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Lanes(dict[str, int]):
    def __missing__(self, category: str) -> int:
        # A plain int: numpy takes far longer over members of an enumeration.
        self[category] = lane = int(lane_of(category))
        return lane


class ThreadIds(dict[tuple[Scalar, Scalar], int]):
    """Numbers threads by (pid, tid), however the two are spelled."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: Interned = Interned()
        """(pid, tid) as numbers, or as text where they are none."""

    def __missing__(self, key: tuple[Scalar, Scalar]) -> int:
        self[key] = number = self.threads[_plain(key[0]), _plain(key[1])]
        return number


class Growing:
    """Rows of a table, in arrays of its columns' types that grow as they fill."""

    def __init__(self, table: type[Table]) -> None:
        self.table = table
        self.rows = 0
        self._dtypes = {spec.name: spec.metadata["dtype"] for spec in table.columns()}
        self._columns: dict[str, npt.NDArray[Any]] = {}

    def append(self, rows: int, **columns: npt.NDArray[Any] | int) -> None:
        """Add rows; every call names the same columns."""
        end = self.rows + rows
        for name, values in columns.items():
            held = self._columns.get(name)
            if held is None:
                held = self._columns[name] = np.empty(max(256, end), self._dtypes[name])
            elif len(held) < end:
                held.resize(max(end, len(held) + len(held) // 2), refcheck=False)
            held[self.rows : end] = values
        self.rows = end

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column's rows so far."""
        return self._columns[name][: self.rows] if self.rows else np.empty(0, self._dtypes[name])

    def take_sorted(self) -> dict[str, npt.NDArray[Any]]:
        """The columns, ordered by start; they are given away one by one, so that nothing is held twice."""
        order = np.argsort(self.column("start_ns"), kind="stable")
        return {name: self._columns.pop(name)[: self.rows][order] for name in list(self._columns)}


@dataclass
class RankTables:
    """What has been read of one rank."""

    names: Interned = field(default_factory=Interned)
    texts: Interned = field(default_factory=Interned)
    threads: ThreadIds = field(default_factory=ThreadIds)
    thread_names: dict[tuple[Scalar, Scalar], str] = field(default_factory=dict)
    collectives: Interned = field(default_factory=Interned)
    device: Growing = field(default_factory=lambda: Growing(DeviceWork))
    calls: Growing = field(default_factory=lambda: Growing(HostCalls))
    ops: Growing = field(default_factory=lambda: Growing(Ops))
    frames: Growing = field(default_factory=lambda: Growing(Frames))
    ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    device_ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    unknown: Counter[str] = field(default_factory=Counter)
    """Events left out, by category."""
    without_time: int = 0
    without_duration: int = 0
    negative: int = 0
    _lanes: _Lanes = field(default_factory=_Lanes)
    _is_mark: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def add(self, events: Sequence[X]) -> None:
        """Take in complete events. Raises Inexact, before anything is taken, where their times have lost digits."""
        starts = nanoseconds([event.ts for event in events])
        durations = self._durations([event.dur for event in events])
        lanes_of, ids = self._lanes, self.names
        lane = np.array([lanes_of[event.cat] for event in events], np.int64)
        names = np.array([ids[event.name] for event in events], np.int64)
        lane[(lane == Lane.OP) & self._marks(names)] = Lane.RANGE
        self._leave_out(events, starts, lane)
        chunk = _Chunk(events, starts, starts + durations, names)
        for kind in _DEVICE_KINDS:
            self._add_device(chunk, np.flatnonzero(lane == kind), kind)
        self._add_calls(chunk, np.flatnonzero(lane == Lane.CALL))
        self._add_ops(chunk, np.flatnonzero(lane == Lane.OP))
        for table, kind in ((self.frames, Lane.FRAME), (self.ranges, Lane.RANGE)):
            rows = np.flatnonzero(lane == kind)
            if len(rows):
                table.append(len(rows), **chunk.times(rows), thread=self._threads(chunk, rows))
        rows = np.flatnonzero(lane == Lane.DEVICE_RANGE)
        if len(rows):
            self.device_ranges.append(len(rows), **chunk.times(rows), thread=MISSING)

    def _marks(self, names: Int64) -> npt.NDArray[np.bool_]:
        """Which of the names are annotations, even where they are filed as operators."""
        if len(self._is_mark) < len(self.names):
            added = list(self.names)[len(self._is_mark) :]
            self._is_mark = np.append(self._is_mark, [is_mark(name) for name in added])
        marks: npt.NDArray[np.bool_] = self._is_mark[names]
        return marks

    def _durations(self, values: Sequence[Any]) -> Int64:
        durations = nanoseconds(values)
        missing, negative = durations == UNREADABLE, durations < 0
        if negative.any():
            self.without_duration += int(missing.sum())
            self.negative += int((negative & ~missing).sum())
            durations = np.where(negative, 0, durations)
        return durations

    def _leave_out(self, events: Sequence[X], starts: Int64, lane: Int64) -> None:
        unreadable = starts == UNREADABLE
        if unreadable.any():
            self.without_time += int(unreadable.sum())
            lane[unreadable] = Lane.UNUSED
        for i in np.flatnonzero(lane == Lane.UNKNOWN).tolist():
            self.unknown[events[i].cat] += 1

    def _threads(self, chunk: _Chunk, rows: Int64) -> Int64:
        ids, events = self.threads, chunk.events
        return np.array([ids[events[i].pid, events[i].tid] for i in rows.tolist()], np.int64)

    def _add_device(self, chunk: _Chunk, rows: Int64, kind: Lane) -> None:
        if not len(rows):
            return
        events = [chunk.events[i] for i in rows.tolist()]
        args = [event.args for event in events]
        paths = [copy_path(e.name, a.kind) for e, a in zip(events, args, strict=True)] if kind is Lane.COPY else []
        device, stream = ids_of([a.device for a in args]), ids_of([a.stream for a in args])
        graph = ids_of([a.graph for a in args])
        self.device.append(
            len(rows),
            **chunk.times(rows),
            kind=int(_DEVICE_KINDS[kind]),
            device=_ordinals(np.where(device == MISSING, ids_of([event.pid for event in events]), device)),
            stream=np.where(stream == MISSING, ids_of([_stream(event.tid) for event in events]), stream),
            correlation=ids_of([a.correlation for a in args]),
            external_id=_external_ids(args),
            size_bytes=ids_of([a.bytes for a in args]) if kind is not Lane.KERNEL else MISSING,
            direction=np.asarray([direction for direction, _ in paths], np.int64) if paths else 0,
            host_memory=np.asarray([memory for _, memory in paths], np.int64) if paths else 0,
            collective=self._collectives(args) if kind is Lane.KERNEL else MISSING,
            graph=np.where(graph == 0, MISSING, graph),  # Kineto writes 0 for "by no graph"
        )

    def _collectives(self, args: Sequence[Args]) -> Int64:
        rows = np.full(len(args), MISSING, np.int64)
        for i, one in enumerate(args):
            if one.collective is not None:
                collective = collective_of(one)
                rows[i] = self.collectives[collective] if collective else MISSING
        return rows

    def _add_calls(self, chunk: _Chunk, rows: Int64) -> None:
        if not len(rows):
            return
        args = [chunk.events[i].args for i in rows.tolist()]
        self.calls.append(
            len(rows),
            **chunk.times(rows),
            thread=self._threads(chunk, rows),
            correlation=ids_of([a.correlation for a in args]),
            external_id=_external_ids(args),
        )

    def _add_ops(self, chunk: _Chunk, rows: Int64) -> None:
        if not len(rows):
            return
        args = [chunk.events[i].args for i in rows.tolist()]
        forward = ids_of([a.forward_thread for a in args])
        self.ops.append(
            len(rows),
            **chunk.times(rows),
            thread=self._threads(chunk, rows),
            external_id=_external_ids(args),
            sequence=ids_of([a.sequence for a in args]),
            forward_thread=np.where(forward == 0, MISSING, forward),  # 0: it is no backward operator
            shapes=self._texts([a.shapes or a.old_shapes for a in args]),
            dtypes=self._texts([a.dtypes for a in args]),
        )

    def _texts(self, raws: Sequence[Raw]) -> Int64:
        ids = self.texts
        return np.asarray([ids[bytes(raw)] if raw else MISSING for raw in raws], np.int64)


@dataclass
class _Chunk:
    """Events of one chunk with what all tables need of them."""

    events: Sequence[X]
    starts: Int64
    ends: Int64
    names: Int64

    def times(self, rows: Int64) -> dict[str, Int64]:
        return {"start_ns": self.starts[rows], "end_ns": self.ends[rows], "name": self.names[rows]}


def _plain(part: Scalar) -> Scalar:
    """A process or thread id as a number where it is one, however it is written."""
    number = _id_of(part)
    return part if number == MISSING else number


def ids_of(values: Sequence[Scalar]) -> Int64:
    """Ids and sizes as int64; text is read as a number, and what is none is `MISSING`."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((_id_of(value) for value in values), np.int64, len(values))


def _id_of(value: Scalar) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value) if value is not None else MISSING
    except (ValueError, OverflowError):
        return MISSING
    if 1 << 63 <= number < 1 << 64:
        return number - (1 << 64)  # an unsigned id keeps its identity
    return number if -(1 << 63) <= number < 1 << 63 else MISSING


def _external_ids(args: Sequence[Args]) -> Int64:
    ids = ids_of([a.external_id for a in args])
    if (ids == MISSING).any():
        ids = np.where(ids == MISSING, ids_of([a.old_external_id for a in args]), ids)
    return ids


def _ordinals(devices: Int64) -> Int64:
    """Ordinals of devices; an id that is far from one (a process's, a handle) is unknown."""
    return np.where((devices >= 0) & (devices < 1 << 16), devices, MISSING)


def _stream(tid: Scalar) -> Scalar:
    """`stream 7`, as profilers of 2021 named a row, or the number itself."""
    return tid.rpartition(" ")[2] if isinstance(tid, str) else tid
