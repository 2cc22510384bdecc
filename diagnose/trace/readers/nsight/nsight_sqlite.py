"""Reads what `nsys export --type sqlite` writes: Nsight Systems' SQLite databases, of the years 2021 to 2026.

Every table and every column may be missing; each is asked for by name. A file may hold several processes: each one
that put work on a device gives a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from diagnose.errors import NotATrace
from diagnose.model import Facts
from diagnose.trace import Thread, Trace
from diagnose.trace.readers.columns import Growing, Interned
from diagnose.trace.readers.io.sqlite_file import MAGIC, Database, open_database, table_names
from diagnose.trace.readers.nsight.nvtx_ranges import has_rows, read_marks, with_kinds
from diagnose.trace.readers.nsight.tables import UNKNOWN_PROCESS, Activities, ProcessTables
from diagnose.trace.readers.nsight.target import Gpu, Target, read_counters
from diagnose.trace.readers.reader import Reader, rank_in_name, window_of
from diagnose.trace.schema import MISSING, Counters, DeviceWork, HostCalls, Ops, Ranges

_PROCESS_BITS = 24
_LOW_BITS = (1 << _PROCESS_BITS) - 1
_OF_NSIGHT = ("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "NVTX_EVENTS", "OSRT_API", "ProcessStreams", "ANALYSIS_DETAILS")
_OF_NVPROF = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
_RECORD = "record with: nsys profile --trace=cuda,nvtx,osrt"


@dataclass(frozen=True)
class Process:
    """One process that becomes a trace."""

    key: int
    tables: ProcessTables
    devices: tuple[int, ...]
    """CUDA's numbers of the devices that it used, the one with most work first."""

    @property
    def pid(self) -> int:
        """The process's id on its machine; -1 where the recording has none."""
        return MISSING if self.key == UNKNOWN_PROCESS else self.key & _LOW_BITS


def read(path: Path) -> list[Trace]:
    """One trace for each process that used a device; without any, one of the process that did most on the host."""
    with open_database(path) as database:
        return read_database(path, database)


def read_database(path: Path, database: Database) -> list[Trace]:
    """The traces of an open database; `path` is what the user gave."""
    if _OF_NVPROF in database.tables:
        raise NotATrace(path, f"this is a database of nvprof, which Nsight Systems replaced in 2020; {_RECORD}")
    activities = Activities(database)
    activities.read()
    read_marks(activities)
    target = Target.of(database)
    processes = _processes(activities)
    if not processes:
        raise NotATrace(path, _why_empty(database, activities, target))
    warnings = _warnings(path, activities, target, processes)
    traces = []
    for rank, process in enumerate(processes):
        number = rank if len(processes) > 1 else rank_in_name(path)
        traces.append(_trace(path, database, process, activities, target, number, () if rank else warnings))
    return traces


def _processes(activities: Activities) -> list[Process]:
    """Return the processes in the order of their ranks: by device, then by process id."""
    found = [Process(key, one, _devices(one.device)) for key, one in activities.processes.items() if has_rows(one)]
    on_device = [process for process in found if process.tables.device.rows]
    if on_device:
        return sorted(on_device, key=lambda process: (process.devices[:1], process.pid))
    busiest = sorted(found, key=lambda process: -process.tables.calls.rows - process.tables.ops.rows)
    return busiest[:1]


def _devices(device: Growing) -> tuple[int, ...]:
    ordinals, counts = np.unique(device.column("device"), return_counts=True)
    return tuple(ordinals[np.argsort(-counts, kind="stable")].tolist())


def _trace(
    path: Path,
    database: Database,
    process: Process,
    activities: Activities,
    target: Target,
    rank: int | None,
    warnings: Sequence[str],
) -> Trace:
    tables, names = process.tables, Interned(activities.names)
    device: DeviceWork = tables.device.build(target.epoch_ns)
    calls: HostCalls = tables.calls.build(target.epoch_ns)
    ops: Ops = tables.ops.build(target.epoch_ns)
    ranges: Ranges = with_kinds(tables.ranges.build(target.epoch_ns), tuple(names))
    gpus = [gpu for gpu in (target.gpu_of(process.pid, ordinal) for ordinal in process.devices) if gpu]
    return Trace(
        source=str(path),
        counters=_counters(database, process, target, names),
        names=tuple(names),
        texts=tuple(activities.texts),
        threads=_threads(tables, target),
        rank=rank,
        device_names=tuple(dict.fromkeys(gpu.name for gpu in gpus or target.gpus)),
        window_ns=window_of((device, calls, ops, ranges)),
        device=device,
        calls=calls,
        ops=ops,
        ranges=ranges,
        facts=_facts(gpus[0]) if gpus else Facts(),
        warnings=tuple(warnings),
    )


def _counters(database: Database, process: Process, target: Target, names: Interned) -> Counters:
    numbers = {}
    for ordinal in process.devices:
        gpu = target.gpu_of(process.pid, ordinal)
        numbers[ordinal if gpu is None else gpu.id] = ordinal
    counters = read_counters(database, numbers, names)
    return replace(counters, time_ns=counters.time_ns + target.epoch_ns)


def _threads(tables: ProcessTables, target: Target) -> tuple[Thread, ...]:
    named = target.thread_names
    return tuple(
        Thread(one >> _PROCESS_BITS & _LOW_BITS, one & _LOW_BITS, named.get(one, "").strip()) for one in tables.threads
    )


def _facts(gpu: Gpu) -> Facts:
    return Facts(device_name=gpu.name, device_capability=gpu.capability, device_memory_bytes=gpu.memory_bytes)


def _warnings(path: Path, activities: Activities, target: Target, processes: Sequence[Process]) -> tuple[str, ...]:
    found = [
        f"{path}: the table {table} is damaged ({why}); what could be read of it was used"
        for table, why in activities.damaged.items()
    ]
    counted = (
        (activities.without_time, "events have no time that can be read and were left out"),
        (activities.negative, "events have a negative duration; they count as instants"),
        (activities.unclosed, "NVTX ranges were never closed and were left out"),
        (
            activities.whole_graphs,
            "replays of CUDA graphs were recorded as a whole, each counts as one piece of compute; "
            "to see their kernels, record with --cuda-graph-trace=node",
        ),
    )
    found += [f"{path}: {count} {what}" for count, what in counted if count]
    mine = {process.key for process in processes}
    found += [f"{path}: nsys says: {said}" for pid, said in target.diagnostics if pid >> _PROCESS_BITS in mine]
    if len(processes) > 1:
        listed = [f"rank {rank} is process {one.pid} on device {one.devices[0]}" for rank, one in enumerate(processes)]
        more = ["…"] if len(listed) > 8 else []
        found.append(
            f"{path}: {len(processes)} processes used a device; they are numbered by device, then by process id: "
            + ", ".join(listed[:8] + more)
        )
    return tuple(found)


def _why_empty(database: Database, activities: Activities, target: Target) -> str:
    if activities.damaged:
        return "is a damaged export of Nsight Systems: none of its events can be read; export it again"
    told = sorted((text for _, text in target.diagnostics), key=lambda text: "CUDA" not in text)
    said = f" (nsys says: {told[0]})" if told else ""
    only = "only calls of the operating system" if "OSRT_API" in database.tables else "no event of the program"
    return f"is an export of Nsight Systems with {only}: no CUDA work, calls or NVTX ranges{said}; {_RECORD}"


def _sniffs(head: bytes, path: Path) -> bool:
    return head.startswith(MAGIC) and any(name.startswith(_OF_NSIGHT) for name in table_names(path))


READER = Reader("Nsight Systems", _sniffs, read)
