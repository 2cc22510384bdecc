"""What AMD's profilers record, whichever file it came from: rows per process that grow batch by batch, then traces.

Readers give columns as their file has them (numbers, text, None); what is no time is counted and left out. Kernels are
joined with the call that launched them by the profiler's correlation id. Kernel names have lost `.kd`. A grid counts
work-items in all of AMD's formats, blocks nowhere; the schema has no column for either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import NotATrace
from diagnose.model import Facts
from diagnose.trace import Thread, Trace
from diagnose.trace.readers.kineto_meaning import range_kind
from diagnose.trace.readers.kineto_tables import Growing, Interned, ids_of
from diagnose.trace.readers.rocm_meaning import Domain, copy_kind, direction_of, domain_of, kernel_name, rccl_kind
from diagnose.trace.readers.rocm_rccl import RcclCall, collectives_of
from diagnose.trace.schema import MISSING, DeviceWork, HostCalls, Int32, Int64, Ops, RangeKind, Ranges, WorkKind

Values = Sequence[Any]

_LATEST_NS = 1 << 62
"""146 years after boot; a later time is garbage, and the sum of two times cannot overflow."""


@dataclass(frozen=True)
class Agent:
    """A processor as the profiler lists it."""

    ordinal: int
    """Among the GPUs where the file says so, else the agent's own number."""
    name: str = ""
    """The product's name; empty where the file names none."""
    memory_bytes: int | None = None


@dataclass
class Process:
    """The rows of one process."""

    pid: int
    device: Growing = field(default_factory=lambda: Growing(DeviceWork))
    calls: Growing = field(default_factory=lambda: Growing(HostCalls))
    ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    ops: Growing = field(default_factory=lambda: Growing(Ops))
    rccl: list[RcclCall] = field(default_factory=list)
    names: Interned = field(default_factory=Interned)
    texts: Interned = field(default_factory=Interned)
    threads: Interned = field(default_factory=Interned)
    lost: Counter[str] = field(default_factory=Counter)
    queues: list[Int64] = field(default_factory=list)
    """The hardware queues, row by row of `device`: they stand in where no stream was recorded."""

    def add_kernels(
        self,
        begin: Values,
        end: Values,
        names: Values,
        device: Values,
        stream: Values,
        queue: Values,
        correlation: Values,
    ) -> None:
        """Kernel dispatches; `device` is ordinals."""
        start, finish, keep = self._times(begin, end)
        self.device.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            kind=int(WorkKind.KERNEL),
            name=self._names([kernel_name(_text(name)) for name in _kept(names, keep)]),
            device=_ordinals(ids_of(_kept(device, keep))),
            stream=ids_of(_kept(stream, keep)),
            correlation=ids_of(_kept(correlation, keep)),
            size_bytes=MISSING,
            direction=0,
        )
        self.queues.append(ids_of(_kept(queue, keep)))

    def add_copies(
        self,
        begin: Values,
        end: Values,
        names: Values,
        device: Values,
        stream: Values,
        correlation: Values,
        size_bytes: Values,
    ) -> None:
        """Copies and sets; the name gives kind and direction."""
        start, finish, keep = self._times(begin, end)
        kept = [_text(name) for name in _kept(names, keep)]
        self.device.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            kind=np.asarray([int(copy_kind(name)) for name in kept], np.int64),
            name=self._names(kept),
            device=_ordinals(ids_of(_kept(device, keep))),
            stream=ids_of(_kept(stream, keep)),
            correlation=ids_of(_kept(correlation, keep)),
            size_bytes=np.maximum(ids_of(_kept(size_bytes, keep)), MISSING),
            direction=np.asarray([int(direction_of(name)) for name in kept], np.int64),
        )
        self.queues.append(np.full(len(start), MISSING, np.int64))

    def add_host(
        self,
        domain: str,
        begin: Values,
        end: Values,
        names: Values,
        tids: Values,
        correlation: Values,
        arguments: Values | None = None,
    ) -> None:
        """Host calls of one domain (`HIP_RUNTIME_API`, `MARKER_CORE_API`, `RCCL_API`, …), each to its table."""
        start, finish, keep = self._times(begin, end)
        kept = [_text(name) for name in _kept(names, keep)]
        threads = self.threads_of(_kept(tids, keep))
        kind = domain_of(domain)
        if kind is Domain.MARKER:
            self.ranges.append(len(start), start_ns=start, end_ns=finish, name=self._names(kept), thread=threads)
            return
        ids = ids_of(_kept(correlation, keep))
        moves = np.zeros(len(start), np.bool_)
        if kind is Domain.RCCL:
            moves = np.asarray([rccl_kind(name) is not None for name in kept], np.bool_)
            given = [None] * len(kept) if arguments is None else _kept(arguments, keep)
            rows = zip(start.tolist(), finish.tolist(), threads.tolist(), kept, ids.tolist(), given, strict=True)
            self.rccl += [RcclCall(*row) for row in rows]
        number = self._names(kept)
        for table, rows_of in ((self.ranges, moves), (self.calls, ~moves)):
            if rows_of.any():
                more = {"correlation": ids[rows_of]} if table is self.calls else {}
                table.append(
                    int(rows_of.sum()),
                    start_ns=start[rows_of],
                    end_ns=finish[rows_of],
                    name=number[rows_of],
                    thread=threads[rows_of],
                    **more,
                )

    def add_ops(self, begin: Values, end: Values, names: Values, tids: Values, shapes: Values) -> None:
        """Framework operators, where a profiler saw them."""
        start, finish, keep = self._times(begin, end)
        texts = [_text(shape) for shape in _kept(shapes, keep)]
        self.ops.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            name=self._names([_text(name) for name in _kept(names, keep)]),
            thread=self.threads_of(_kept(tids, keep)),
            shapes=np.asarray([self.texts[text] if text else MISSING for text in texts], np.int64),
        )

    def threads_of(self, tids: Values) -> Int64:
        """The numbers of threads in `Trace.threads`."""
        ids = self.threads
        return np.asarray([ids[tid] if tid >= 0 else MISSING for tid in ids_of(tids).tolist()], np.int64)

    def _names(self, names: Sequence[str]) -> Int64:
        ids = self.names
        return np.asarray([ids[name] for name in names], np.int64)

    def _times(self, begin: Values, end: Values) -> tuple[Int64, Int64, Any]:
        """Begin and end of the rows that have a begin, and the mask of those rows."""
        start, finish = ids_of(begin), ids_of(end)
        keep = (start > 0) & (start < _LATEST_NS)
        self.lost["have no time that can be read and were left out"] += int((~keep).sum())
        start, finish = start[keep], finish[keep]
        unfinished = (finish <= 0) | (finish >= _LATEST_NS)
        backward = ~unfinished & (finish < start)
        self.lost["have no end; they count as instants"] += int(unfinished.sum())
        self.lost["end before they begin; they count as instants"] += int(backward.sum())
        return start, np.where(unfinished | backward, start, finish), keep


@dataclass
class Recording:
    """What was read of one file, or of several files of one run."""

    path: Path
    processes: dict[Hashable, Process] = field(default_factory=dict)
    agents: dict[Hashable, Agent] = field(default_factory=dict)
    """GPUs by the key with which the file refers to them."""
    warnings: list[str] = field(default_factory=list)

    def process(self, key: Hashable, pid: int = MISSING) -> Process:
        """The rows of a process, by whatever the file tells processes apart with."""
        if key not in self.processes:
            self.processes[key] = Process(key if pid == MISSING and isinstance(key, int) else pid)
        return self.processes[key]

    def ordinals(self, keys: Values) -> list[int]:
        """The ordinals of the GPUs that the file refers to as `keys`."""
        agents, unknown = self.agents, Agent(MISSING)
        return [agents.get(key, unknown).ordinal for key in keys]

    def traces(self, nothing: str) -> list[Trace]:
        """One trace for each process that recorded anything, in the order of their ids; `nothing` says why none."""
        return ranked(self.of_processes(nothing))

    def of_processes(self, nothing: str) -> list[tuple[int, Trace]]:
        """The same, with the process ids and without ranks."""
        filled = [process for process in self.processes.values() if _window(process) is not None]
        if not filled:
            raise NotATrace(self.path, nothing)
        warnings = tuple(f"{self.path}: {text}" for text in self.warnings)
        return [
            (process.pid, self._trace(process, warnings if number == 0 else ()))
            for number, process in enumerate(filled)
        ]

    def _trace(self, process: Process, warnings: tuple[str, ...]) -> Trace:
        window = _window(process)
        names = tuple(process.names)
        streams = process.device.column("stream")
        if (streams <= 0).all() and len(streams):
            # Streams are known only where HIP was traced; a queue serves one stream at a time.
            streams[:] = np.concatenate(process.queues)
        device, calls = _table(process.device), _table(process.calls)
        collectives, of_kernel = collectives_of(process.rccl, device, calls, names)
        if collectives:
            device = DeviceWork(**{**vars(device), "collective": of_kernel})
        ranges = _table(process.ranges)
        if len(ranges):
            kinds = np.asarray([_range_kind(name) for name in names], np.uint8)
            ranges = Ranges(**{**vars(ranges), "kind": kinds[ranges.name]})
        used = _used_first(self.agents, device)
        named = [agent.name for agent in used if agent.name]
        lost = tuple(f"{self.path}: {count} events {what}" for what, count in process.lost.items() if count)
        busiest = used[0] if used and len(device) else None
        return Trace(
            source=str(self.path),
            names=names,
            texts=tuple(process.texts),
            threads=tuple(Thread(process.pid, tid) for tid in process.threads),
            collectives=collectives,
            device_names=tuple(named),
            window_ns=window,
            device=device,
            calls=calls,
            ops=_table(process.ops),
            ranges=ranges,
            facts=Facts(device_name=busiest.name or None, device_memory_bytes=busiest.memory_bytes)
            if busiest
            else Facts(),
            warnings=(*warnings, *lost),
        )


def ranked(of_processes: Sequence[tuple[int, Trace]]) -> list[Trace]:
    """The traces of several processes as the ranks of a job: none of AMD's formats says which rank a process was."""
    ordered = sorted(of_processes, key=lambda pair: pair[0])
    if len(ordered) == 1:
        return [ordered[0][1]]
    pids = ", ".join(str(pid) for pid, _ in ordered[:16])
    warning = (
        f"{ordered[0][1].source}: no ranks are recorded; the {len(ordered)} processes are taken for ranks in the order "
        f"of their ids ({pids}{', …' if len(ordered) > 16 else ''})"
    )
    traces = [replace(trace, rank=rank) for rank, (_, trace) in enumerate(ordered)]
    return [replace(traces[0], warnings=(warning, *traces[0].warnings)), *traces[1:]]


def _table(rows: Growing) -> Any:
    return rows.table.build(rows.take_sorted() if rows.rows else None)


def _window(process: Process) -> tuple[int, int] | None:
    filled = [rows for rows in (process.device, process.calls, process.ranges, process.ops) if rows.rows]
    if not filled:
        return None
    starts, ends = ([rows.column(name) for rows in filled] for name in ("start_ns", "end_ns"))
    return min(int(column.min()) for column in starts), max(int(column.max()) for column in ends)


def _range_kind(name: str) -> RangeKind:
    return RangeKind.COLLECTIVE if rccl_kind(name) is not None and "nccl" in name else range_kind(name)


def _used_first(agents: Mapping[Hashable, Agent], work: DeviceWork) -> list[Agent]:
    """The GPUs of the file, the one with the most work first."""
    ordinals, counts = np.unique(work.device, return_counts=True)
    rows = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
    return sorted(dict.fromkeys(agents.values()), key=lambda agent: (-rows.get(agent.ordinal, 0), agent.ordinal))


def _ordinals(devices: Int64) -> Int32:
    return np.where((devices >= 0) & (devices < 1 << 16), devices, MISSING).astype(np.int32)


def _kept(values: Values, keep: Any) -> Values:
    return values if keep.all() else [value for value, kept in zip(values, keep.tolist(), strict=True) if kept]


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
