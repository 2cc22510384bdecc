"""Columns of each process in an Nsight Systems database, filled table by table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from diagnose.trace.readers.columns import Growing, Interned
from diagnose.trace.readers.io.sqlite_file import Database
from diagnose.trace.readers.io.sqlite_numbers import ABSENT, Damaged, file_bytes, numbers
from diagnose.trace.readers.kineto.tables import ordinals
from diagnose.trace.readers.nsight.meaning import call_name, copy_path
from diagnose.trace.schema import MISSING, Bool, DeviceWork, HostCalls, Int64, Ops, Ranges, WorkKind

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"

UNKNOWN_PROCESS = -1
_PROCESS_BITS = 24  # a thread's global id is its process's with the thread's number in the lowest 24 bits
_FURTHEST_NS = 1 << 62
_STRINGS_AT_ONCE = 400
_STRINGS = f"SELECT id, substr(value, 1, {1 << 16}) FROM StringIds"
UNNAMED = "(unnamed)"

_ON_DEVICE = ("deviceId", "streamId", "correlationId")

Rows = dict[str, Int64]


@dataclass
class ProcessTables:
    """The tables read so far of one process."""

    device: Growing = field(default_factory=lambda: Growing(DeviceWork))
    calls: Growing = field(default_factory=lambda: Growing(HostCalls))
    ops: Growing = field(default_factory=lambda: Growing(Ops))
    ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    threads: Interned = field(default_factory=Interned)
    """Global thread ids, in the order of their numbers."""


@dataclass
class Activities:
    """The activities of all processes of a database; times are ns since the session began."""

    database: Database
    processes: dict[int, ProcessTables] = field(default_factory=dict)
    names: Interned = field(default_factory=Interned)
    texts: Interned = field(default_factory=Interned)
    damaged: dict[str, str] = field(default_factory=dict)
    """Tables that could not be read to their end, and why."""
    without_time: int = 0
    negative: int = 0
    unclosed: int = 0
    whole_graphs: int = 0
    _text_bytes: int = 0
    _registered: dict[int, str] = field(default_factory=dict)
    _interned: dict[Callable[[str], str], dict[int, int]] = field(default_factory=dict)

    def read(self) -> None:
        """Read the device's work and the calls that asked for it, as far as they are there."""
        for table, take in (
            (KERNELS, self._kernels),
            (COPIES, self._copies),
            (SETS, self._sets),
            (GRAPHS, self._graphs),
            (CALLS, self._calls),
        ):
            if self.database.has(table, "start", "end"):
                try:
                    take()
                except Damaged as error:
                    self.damaged[table] = str(error)
        # Device work of no known process belongs to the one process that called the device, if there is just one.
        unknown = self.processes.get(UNKNOWN_PROCESS)
        hosts = [one for key, one in self.processes.items() if key != UNKNOWN_PROCESS and one.calls.rows]
        if unknown is not None and len(hosts) == 1 and not hosts[0].device.rows and not unknown.calls.rows:
            hosts[0].device, unknown.device = unknown.device, hosts[0].device

    def _kernels(self) -> None:
        there = self.database.tables[KERNELS]
        name = next(
            (column for column in ("demangledName", "shortName", "mangledName") if column in there), "shortName"
        )
        for rows in self._rows(KERNELS, "globalPid", *_ON_DEVICE, name, "graphNodeId", "graphId"):
            names = self.interned(rows[name])
            self._add_device(rows, WorkKind.KERNEL, names, graph=_graph_of(rows))

    def _copies(self) -> None:
        for rows in self._rows(
            COPIES, "globalPid", *_ON_DEVICE, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"
        ):
            kinds = np.stack([rows["copyKind"], rows["srcKind"], rows["dstKind"]], axis=1)
            distinct, which = np.unique(kinds, axis=0, return_inverse=True)
            paths = [copy_path(*kind) for kind in distinct.tolist()]
            per_path = np.asarray([(self.names[name], way, memory) for name, way, memory in paths], np.int64).reshape(
                -1, 3
            )
            names, directions, memories = per_path[which.reshape(-1)].T
            self._add_device(
                rows,
                WorkKind.COPY,
                names,
                graph=_graph_of(rows),
                size_bytes=_id(rows["bytes"]),
                direction=directions,
                host_memory=memories,
            )

    def _sets(self) -> None:
        for rows in self._rows(SETS, "globalPid", *_ON_DEVICE, "bytes", "graphNodeId"):
            names = np.full(len(rows["start"]), self.names["Memset (Device)"], np.int64)
            self._add_device(rows, WorkKind.SET, names, graph=_graph_of(rows), size_bytes=_id(rows["bytes"]))

    def _graphs(self) -> None:
        """Graphs that were recorded as a whole: each replay is one piece of work."""
        for rows in self._rows(GRAPHS, "globalPid", *_ON_DEVICE, "graphId"):
            graph = _id(rows["graphId"])
            distinct, which = np.unique(graph, return_inverse=True)
            titles = [f"CUDA graph {one}" if one != MISSING else "CUDA graph" for one in distinct.tolist()]
            names = np.asarray([self.names[title] for title in titles], np.int64)[which]
            self._add_device(rows, WorkKind.KERNEL, names, graph=graph)
            self.whole_graphs += len(graph)

    def _add_device(self, rows: Rows, kind: WorkKind, names: Int64, **more: Int64) -> None:
        given: dict[str, Int64 | int] = {"size_bytes": MISSING, "direction": 0, "host_memory": 0, **more}
        columns: dict[str, Int64 | int] = {
            "name": names,
            "device": ordinals(rows["deviceId"]),
            "stream": _id(rows["streamId"]),
            "correlation": _id(rows["correlationId"]),
            **given,
        }
        for tables, mine in self.by_process(rows["globalPid"]):
            chosen = {name: value[mine] if isinstance(value, np.ndarray) else value for name, value in columns.items()}
            tables.device.append(int(mine.sum()), **_times(rows, mine), kind=int(kind), **chosen)

    def _calls(self) -> None:
        for rows in self._rows(CALLS, "globalTid", "correlationId", "nameId"):
            names = self.interned(rows["nameId"], call_name)
            correlation = _id(rows["correlationId"])
            for tables, mine in self.by_process(rows["globalTid"]):
                tables.calls.append(
                    int(mine.sum()),
                    **_times(rows, mine),
                    name=names[mine],
                    thread=thread_indices(tables, rows["globalTid"][mine]),
                    correlation=correlation[mine],
                )

    def _rows(self, table: str, *columns: str) -> Iterator[Rows]:
        """Stretches of a table by column name, without rows that have no time; ends never lie before starts."""
        for start, end, *values in numbers(self.database, table, ("start", "end", *columns)):
            yield self.sound({"start": start, "end": end, **dict(zip(columns, values, strict=True))})

    def sound(self, rows: Rows) -> Rows:
        """Return the rows that have a time, and count the others; a negative duration becomes an instant."""
        start, end = rows["start"], rows["end"]
        # CUPTI writes 0 and 0 where it could not take the time.
        known = _near(start) & _near(end) & ((start != 0) | (end != 0))
        if not known.all():
            self.without_time += int((~known).sum())
            rows = {name: values[known] for name, values in rows.items()}
        self.negative += int((rows["end"] < rows["start"]).sum())
        return {**rows, "end": np.maximum(rows["start"], rows["end"])}

    def by_process(self, global_ids: Int64) -> Iterator[tuple[ProcessTables, Bool]]:
        """The tables of each process among some rows, with the mask of its rows."""
        keys = np.where(global_ids < 0, UNKNOWN_PROCESS, global_ids >> _PROCESS_BITS)
        for key in np.unique(keys).tolist():
            yield self.processes.setdefault(key, ProcessTables()), keys == key

    def interned(self, ids: Int64, change: Callable[[str], str] = str) -> Int64:
        """Indices into `names` for ids of the database's strings, changed."""
        distinct, which = np.unique(ids, return_inverse=True)
        known = self._interned.setdefault(change, {})
        new = [one for one in distinct.tolist() if one not in known]
        found = self.strings(new) if new else {}
        for one in new:
            known[one] = self.names[change(found[one]) if one in found else UNNAMED]
        return np.asarray([known[one] for one in distinct.tolist()], np.int64)[which]

    def strings(self, ids: Sequence[int]) -> dict[int, str]:
        """The database's strings of some ids, as far as they are there."""
        found: dict[int, str] = {}
        if not self.database.has("StringIds", "id", "value"):
            return found
        try:
            for first in range(0, len(ids), _STRINGS_AT_ONCE):
                wanted = ", ".join(map(str, ids[first : first + _STRINGS_AT_ONCE]))
                for keys, values in self.database.query(f"{_STRINGS} WHERE id IN ({wanted})"):
                    self.spend(values)
                    found.update((key, text) for key, text in zip(keys, values, strict=True) if isinstance(text, str))
        except (sqlite3.Error, Damaged) as error:
            self.damaged["StringIds"] = str(error)
        return found

    def registered(self, ids: Collection[int]) -> dict[int, str]:
        """The texts of names that NVTX registered, each looked up once."""
        new = sorted(one for one in ids if one not in self._registered)
        self._registered.update(dict.fromkeys(new, UNNAMED) | self.strings(new))
        return self._registered

    def spend(self, texts: Iterable[object]) -> None:
        """Count texts that were read. Raises Damaged once they are longer than the file: then its rows share them."""
        self._text_bytes += sum(len(text) for text in texts if isinstance(text, str))
        if self._text_bytes > file_bytes(self.database):
            raise Damaged("its texts are longer than the file")


def _times(rows: Rows, mine: Bool) -> Rows:
    return {"start_ns": rows["start"][mine], "end_ns": rows["end"][mine]}


def thread_indices(tables: ProcessTables, global_ids: Int64) -> Int64:
    """Indices into the process's threads for global thread ids."""
    distinct, which = np.unique(global_ids, return_inverse=True)
    indices = [tables.threads[one] if one >= 0 else MISSING for one in distinct.tolist()]
    return np.asarray(indices, np.int64)[which]


def _near(times: Int64) -> Bool:
    return np.asarray((times > -_FURTHEST_NS) & (times < _FURTHEST_NS), np.bool_)


def _id(values: Int64) -> Int64:
    return np.where(values == ABSENT, MISSING, values)


def _graph_of(rows: Rows) -> Int64:
    """The graph that replayed a piece of work: as written since 2026, before that the upper half of the node's id."""
    node, graph = rows["graphNodeId"], rows.get("graphId", np.full(len(rows["graphNodeId"]), ABSENT, np.int64))
    upper = node >> 32
    return np.where(graph > 0, graph, np.where(node > 0, np.where(upper > 0, upper, node), MISSING))
