"""Sorts the events of a Kineto document into the schema's tables chunk by chunk: one set of tables per rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from diagnose.trace import Collective
from diagnose.trace.readers.columns import Growing, Interned, Texts, ThreadIds, amounts_of, ids_of
from diagnose.trace.readers.kineto.events import ABSENT, Args, ExactInstant, ExactX, Instant, Metadata, Scalar, X
from diagnose.trace.readers.kineto.meaning import (
    Lane,
    collective_of,
    copy_path,
    depends_on_values,
    is_mark,
    lane_of,
    wait_kind,
)
from diagnose.trace.readers.kineto.memory_events import MemoryInstants, add_memory, of_memory
from diagnose.trace.readers.kineto.regular_events import lane_by_type
from diagnose.trace.readers.kineto.timestamps import UNREADABLE, nanoseconds
from diagnose.trace.schema import MISSING, DeviceWaits, DeviceWork, Frames, HostCalls, Int64, Ops, Ranges, WorkKind

_ORDER = tuple(lane for lane in Lane if lane not in (Lane.UNUSED, Lane.UNKNOWN, Lane.MEMORY))
_LANES = lane_by_type()
_GROWING = ("device", "calls", "ops", "frames", "ranges", "device_ranges", "memory", "waits")
_DEVICE_KINDS = {Lane.KERNEL: WorkKind.KERNEL, Lane.COPY: WorkKind.COPY, Lane.SET: WorkKind.SET}


@dataclass
class RankTables:
    """The tables read so far of one rank."""

    names: Interned = field(default_factory=Interned)
    texts: Texts = field(default_factory=Texts)
    threads: ThreadIds = field(default_factory=ThreadIds)
    thread_names: dict[tuple[Scalar, Scalar], str] = field(default_factory=dict)
    collectives: Interned = field(default_factory=Interned)
    device: Growing = field(default_factory=lambda: Growing(DeviceWork))
    calls: Growing = field(default_factory=lambda: Growing(HostCalls))
    ops: Growing = field(default_factory=lambda: Growing(Ops))
    frames: Growing = field(default_factory=lambda: Growing(Frames))
    ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    device_ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    memory: Growing = field(default_factory=lambda: Growing(MemoryInstants))
    waits: Growing = field(default_factory=lambda: Growing(DeviceWaits))
    unknown: Counter[str] = field(default_factory=Counter)
    """Events left out, by category."""
    without_time: int = 0
    without_duration: int = 0
    negative: int = 0
    _is_mark: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    _is_detailed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    def add(self, events: Iterable[Any]) -> None:
        """Take in what is of use of some events. Raises Inexact, with nothing taken, where times have lost digits."""
        by_type = _by_type(events)
        lanes = _by_lane(by_type)
        # All events of a chunk go through numpy together: each call costs as much as some ten events.
        ordered = [event for lane in _ORDER for event in lanes[lane]]
        starts = nanoseconds([event.ts for event in ordered])
        durations = nanoseconds([event.dur for event in ordered])
        memory = of_memory(lanes[Lane.MEMORY])
        moments = nanoseconds([event.ts for event in memory])
        self._note(by_type.get(Metadata, []), lanes[Lane.UNKNOWN])
        if memory:
            self._add_memory(memory, moments)
        unreadable = starts == UNREADABLE
        if unreadable.any():
            self.without_time += int(unreadable.sum())
            self.add(compress(ordered, ~unreadable))
            return
        names = np.fromiter(map(self.names.__getitem__, [event.name for event in ordered]), np.int64, len(ordered))
        chunk = _Rows(ordered, starts, starts + self._sound(durations), names)
        groups: dict[Lane, _Rows] = {}
        end = 0
        for lane in _ORDER:
            begin, end = end, end + len(lanes[lane])
            groups[lane] = chunk.part(slice(begin, end))
        self._take(groups)

    def plain(self) -> dict[str, Any]:
        """All of it as plain data, for another process to `extend` its own with."""
        return {
            "names": list(self.names),
            "texts": self.texts.known(),
            "threads": list(self.threads.threads),
            "thread_names": list(self.thread_names.items()),
            "collectives": list(self.collectives),
            "columns": {name: getattr(self, name).plain() for name in _GROWING},
            "unknown": dict(self.unknown),
            "odd": [self.without_time, self.without_duration, self.negative],
        }

    def extend(self, plain: dict[str, Any]) -> None:
        """Take in what was read of a later part of the same document."""
        collectives = msgspec.convert(plain["collectives"], list[Collective])
        numbers = {
            "name": _numbered(map(self.names.__getitem__, plain["names"])),
            "thread": _numbered(self.threads.threads[pid, tid] for pid, tid in plain["threads"]),
            "collective": _numbered(map(self.collectives.__getitem__, collectives)),
            "shapes": _numbered(map(self.texts.__getitem__, plain["texts"])),
        }
        numbers["dtypes"] = numbers["values"] = numbers["shapes"]
        for table, columns in plain["columns"].items():
            renumbered = {name: numbers[name][held] if name in numbers else held for name, held in columns.items()}
            getattr(self, table).append(len(columns.get("start_ns", ())), **renumbered)
        self.thread_names |= {(pid, tid): name for (pid, tid), name in plain["thread_names"]}
        self.unknown.update(plain["unknown"])
        without_time, without_duration, negative = plain["odd"]
        self.without_time += without_time
        self.without_duration += without_duration
        self.negative += negative

    def _note(self, named: Iterable[Metadata], unknown: Iterable[X]) -> None:
        for event in named:
            if event.name == "thread_name":
                self.thread_names[event.pid, event.tid] = str(event.args.name or "").strip()
        self.unknown.update(event.cat for event in unknown)

    def _take(self, groups: dict[Lane, _Rows]) -> None:
        for lane in _DEVICE_KINDS:
            if groups[lane].events:
                self._add_device(groups[lane], lane)
        if groups[Lane.CALL].events:
            self._add_calls(groups[Lane.CALL])
        ops = groups[Lane.OP]
        marks = self._marks(ops.names)
        if marks.any():
            self._add_host(self.ranges, ops.where(marks))
            ops = ops.where(~marks)
        if ops.events:
            self._add_ops(ops)
        for table, lane in ((self.frames, Lane.FRAME), (self.ranges, Lane.RANGE)):
            if groups[lane].events:
                self._add_host(table, groups[lane])
        if (rows := groups[Lane.DEVICE_RANGE]).events:
            self.device_ranges.append(len(rows.events), **rows.times(), thread=MISSING)
        if groups[Lane.WAIT].events:
            self._add_waits(groups[Lane.WAIT])

    def _marks(self, names: Int64) -> npt.NDArray[np.bool_]:
        """Mark the names of annotations, including those that are filed as operators."""
        if len(self._is_mark) < len(self.names):
            added = list(self.names)[len(self._is_mark) :]
            self._is_mark = np.append(self._is_mark, [is_mark(name) for name in added])
        marks: npt.NDArray[np.bool_] = self._is_mark[names]
        return marks

    def _depends(self, names: Int64) -> npt.NDArray[np.bool_]:
        """Mark the names of operators whose work depends on more than shapes."""
        if len(self._is_detailed) < len(self.names):
            added = list(self.names)[len(self._is_detailed) :]
            self._is_detailed = np.append(self._is_detailed, [depends_on_values(name) for name in added])
        depends: npt.NDArray[np.bool_] = self._is_detailed[names]
        return depends

    def _sound(self, durations: Int64) -> Int64:
        negative = durations < 0
        if not negative.any():
            return durations
        missing = durations == UNREADABLE
        self.without_duration += int(missing.sum())
        self.negative += int((negative & ~missing).sum())
        return np.where(negative, 0, durations)

    def _threads(self, events: Sequence[X]) -> Int64:
        return self.threads.numbers([event.pid for event in events], [event.tid for event in events])

    def _add_memory(self, events: list[Any], moments: Int64) -> None:
        readable = moments != UNREADABLE
        if not readable.all():
            self.without_time += int((~readable).sum())
            events, moments = list(compress(events, readable)), moments[readable]
        if events:
            add_memory(self.memory, events, moments)

    def _add_host(self, table: Growing, rows: _Rows) -> None:
        table.append(len(rows.events), **rows.times(), thread=self._threads(rows.events))

    def _add_device(self, rows: _Rows, lane: Lane) -> None:
        events = rows.events
        args = [event.args for event in events]
        paths = [copy_path(e.name, a.kind) for e, a in zip(events, args, strict=True)] if lane is Lane.COPY else []
        device, stream = ids_of([a.device for a in args]), ids_of([a.stream for a in args])
        if (device == MISSING).any():
            device = np.where(device == MISSING, ids_of([event.pid for event in events]), device)
        if (stream == MISSING).any():
            stream = np.where(stream == MISSING, ids_of([_stream(event.tid) for event in events]), stream)
        graph = ids_of([a.graph for a in args])
        self.device.append(
            len(events),
            **rows.times(),
            kind=int(_DEVICE_KINDS[lane]),
            device=ordinals(device),
            stream=stream,
            correlation=ids_of([a.correlation for a in args]),
            external_id=_external_ids(args),
            size_bytes=ids_of([a.bytes for a in args]) if lane is not Lane.KERNEL else MISSING,
            direction=np.asarray([direction for direction, _ in paths], np.int64) if paths else 0,
            host_memory=np.asarray([memory for _, memory in paths], np.int64) if paths else 0,
            collective=self._collectives(args) if lane is Lane.KERNEL else MISSING,
            graph=np.where(graph == 0, MISSING, graph),  # Kineto writes 0 for "by no graph"
            blocks_per_sm=amounts_of([a.blocks_per_sm for a in args]) if lane is Lane.KERNEL else MISSING,
            warps_per_sm=amounts_of([a.warps_per_sm for a in args]) if lane is Lane.KERNEL else MISSING,
        )

    def _collectives(self, args: Sequence[Args]) -> Int64 | int:
        kinds = [one.collective for one in args]
        if kinds.count(None) == len(kinds):
            return MISSING
        found = [collective_of(one) if kind is not None else None for one, kind in zip(args, kinds, strict=True)]
        ids = self.collectives
        return np.asarray([MISSING if one is None else ids[one] for one in found], np.int64)

    def _add_calls(self, rows: _Rows) -> None:
        args = [event.args for event in rows.events]
        self.calls.append(
            len(rows.events),
            **rows.times(),
            thread=self._threads(rows.events),
            correlation=ids_of([a.correlation for a in args]),
            external_id=_external_ids(args),
        )

    def _add_waits(self, rows: _Rows) -> None:
        args = [event.args for event in rows.events]
        self.waits.append(
            len(rows.events),
            start_ns=rows.starts,
            end_ns=rows.ends,
            kind=np.asarray([wait_kind(event.name) for event in rows.events], np.int64),
            device=ordinals(ids_of([a.device for a in args])),
            stream=_streams(ids_of([a.stream for a in args])),
            correlation=ids_of([a.correlation for a in args]),
            wait_on_stream=_streams(ids_of([a.wait_on_stream for a in args])),
            wait_on_correlation=ids_of([a.wait_on_correlation for a in args]),
        )

    def _add_ops(self, rows: _Rows) -> None:
        args = [event.args for event in rows.events]
        forward = ids_of([a.forward_thread for a in args])
        self.ops.append(
            len(rows.events),
            **rows.times(),
            thread=self._threads(rows.events),
            external_id=_external_ids(args),
            sequence=ids_of([a.sequence for a in args]),
            forward_thread=np.where(forward == 0, MISSING, forward),  # 0: it is no backward operator
            shapes=self.texts.numbers(_shapes(args)),
            dtypes=self.texts.numbers([a.dtypes for a in args]),
            values=self._values(rows.names, args),
        )

    def _values(self, names: Int64, args: Sequence[Args]) -> Int64 | int:
        """The numbers of the texts of values, for operators whose work depends on them; most do without."""
        rows = np.flatnonzero(self._depends(names))
        if len(rows) == 0:
            return MISSING
        numbers = np.full(len(args), MISSING, np.int64)
        numbers[rows] = self.texts.numbers([args[row].values for row in rows.tolist()])
        return numbers


def _numbered(numbers: Iterable[int]) -> Int64:
    """New numbers by old ones; the last entry stays `MISSING`, which -1 finds."""
    return np.array([*numbers, MISSING], np.int64)


def _by_type(events: Iterable[Any]) -> dict[type, list[Any]]:
    by_type: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        by_type[type(event)].append(event)
    return by_type


def _by_lane(by_type: Mapping[type, list[Any]]) -> dict[Lane, list[Any]]:
    by_lane: dict[Lane, list[Any]] = {lane: [] for lane in Lane}
    for kind, members in by_type.items():
        if kind is X or kind is ExactX:
            for event in members:
                by_lane[lane_of(event.cat)].append(event)
        elif kind is Instant or kind is ExactInstant:
            for event in members:
                by_lane[Lane.UNUSED if lane_of(event.cat) is Lane.UNUSED else Lane.MEMORY].append(event)
        elif kind in _LANES:
            by_lane[_LANES[kind]] += members
    return by_lane


@dataclass
class _Rows:
    """Events of one table in one chunk, with what all tables need of them."""

    events: Sequence[X]
    starts: Int64
    ends: Int64
    names: Int64

    def part(self, rows: slice) -> _Rows:
        return _Rows(self.events[rows], self.starts[rows], self.ends[rows], self.names[rows])

    def where(self, mask: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(list(compress(self.events, mask)), self.starts[mask], self.ends[mask], self.names[mask])

    def times(self) -> dict[str, Int64]:
        return {"start_ns": self.starts, "end_ns": self.ends, "name": self.names}


def _external_ids(args: Sequence[Args]) -> Int64:
    ids = ids_of([a.external_id for a in args])
    if (ids == MISSING).any():
        ids = np.where(ids == MISSING, ids_of([a.old_external_id for a in args]), ids)
    return ids


def _shapes(args: Sequence[Args]) -> list[Raw]:
    shapes = [a.shapes for a in args]
    return [a.old_shapes if a.shapes is ABSENT else a.shapes for a in args] if ABSENT in shapes else shapes


def ordinals(devices: Int64) -> Int64:
    """Ordinals of devices; an id that is far from one (a process's, a handle) is unknown."""
    return np.where((devices >= 0) & (devices < 1 << 16), devices, MISSING)


def _streams(ids: Int64) -> Int64:
    """Streams; Kineto writes -1, also as 32 bits without a sign, for none."""
    return np.where((ids < 0) | (ids == (1 << 32) - 1), MISSING, ids)


def _stream(tid: Scalar) -> Scalar:
    """`stream 7`, as profilers of 2021 named a row, or the number itself."""
    return tid.rpartition(" ")[2] if isinstance(tid, str) else tid
