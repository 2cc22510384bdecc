"""The machine and the session as an Nsight Systems database describes them. Environments are never read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diagnose.trace.readers.io.sqlite_file import Database
from diagnose.trace.readers.io.sqlite_numbers import ABSENT, Damaged, numbers
from diagnose.trace.readers.nsight.meaning import metric_name
from diagnose.trace.schema import Counters

_LATEST_EPOCH_NS = 4_000_000_000_000_000_000
_MOST_ROWS = 1_000_000
_SAID = re.compile(
    r"Not all \w+ events might have been collected|No (?:CUDA|NVTX) events collected"
    r"|CUDA profiling might have not been started correctly"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine; None is unknown."""

    id: int
    """Nsight's own number."""
    ordinal: int
    """CUDA's number, as processes see it that are shown all GPUs."""
    name: str
    capability: tuple[int, int] | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Target:
    """The machine and the session."""

    epoch_ns: int = 0
    """The session's begin, in ns since the epoch; 0 where the recording does not say."""
    gpus: tuple[Gpu, ...] = ()
    ordinals: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """CUDA's number of a GPU by (process id, Nsight's number), where a process sees them in an order of its own."""
    thread_names: Mapping[int, str] = field(default_factory=dict)
    """The names of threads by global thread id."""
    diagnostics: tuple[tuple[int, str], ...] = ()
    """Nsight Systems' words on what was not recorded, each with the global process id that it is about, or -1."""

    @classmethod
    def of(cls, database: Database) -> Target:
        """Return the machine and session from the tables there are; a table that cannot be read is skipped."""
        return cls(
            _epoch_ns(database), _gpus(database), _ordinals(database), _thread_names(database), _diagnostics(database)
        )

    def gpu_of(self, pid: int, ordinal: int) -> Gpu | None:
        """The GPU that a process knows by CUDA's number."""
        seen = {cuda: gpu for (process, gpu), cuda in self.ordinals.items() if process == pid}
        if ordinal in seen:
            return next((gpu for gpu in self.gpus if gpu.id == seen[ordinal]), None)
        return next((gpu for gpu in self.gpus if gpu.ordinal == ordinal), None)


def read_counters(database: Database, ids: Mapping[int, int], names: dict[str, int]) -> Counters:
    """Sampled metrics of some GPUs (Nsight's number → CUDA's number); new names are numbered in `names`."""
    parts = []
    titles = {
        key: metric_name(text)
        for key, text in database.mapping("TARGET_INFO_GPU_METRICS", "metricId", "metricName").items()
        if isinstance(key, int) and isinstance(text, str)
    }
    try:
        for time, kind, metric, value in numbers(database, "GPU_METRICS", ("timestamp", "typeId", "metricId", "value")):
            gpu = kind & 0xFF  # the upper bits tell the source of the metric
            rows = np.isin(gpu, list(ids)) & np.isin(metric, list(titles)) & (time != ABSENT) & (value != ABSENT)
            if not rows.any():
                continue
            metrics, which = np.unique(metric[rows], return_inverse=True)
            numbered = np.asarray([names.setdefault(titles[one], len(names)) for one in metrics.tolist()], np.int64)
            gpus, whose = np.unique(gpu[rows], return_inverse=True)
            parts.append(
                Counters.build(
                    {
                        "time_ns": time[rows],
                        "name": numbered[which],
                        "device": np.asarray([ids[one] for one in gpus.tolist()], np.int64)[whose],
                        "value": value[rows],
                    }
                )
            )
    except (Damaged, sqlite3.Error):
        pass  # what was sampled until there is sound
    return Counters.concatenate(parts)


def _epoch_ns(database: Database) -> int:
    for (epoch,) in _rows(database, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(epoch, int) and 0 < epoch < _LATEST_EPOCH_NS:
            return epoch
    return 0


def _gpus(database: Database) -> tuple[Gpu, ...]:
    found = []
    columns = ("id", "cuDevice", "name", "computeMajor", "computeMinor", "totalMemory")
    for number, cuda, name, major, minor, memory in _rows(database, "TARGET_INFO_GPU", columns):
        if isinstance(number, int) and isinstance(name, str) and name.strip():
            ordinal = cuda if isinstance(cuda, int) and 0 <= cuda < 1 << 16 else number
            capability = (major, minor) if isinstance(major, int) and isinstance(minor, int) and major > 0 else None
            size = memory if isinstance(memory, int) and memory > 0 else None
            found.append(Gpu(number, ordinal, name.strip(), capability, size))
    return tuple(found)


def _ordinals(database: Database) -> dict[tuple[int, int], int]:
    found = {}
    for pid, gpu, cuda in _rows(database, "TARGET_INFO_CUDA_DEVICE", ("pid", "gpuId", "cudaId")):
        if isinstance(pid, int) and isinstance(gpu, int) and isinstance(cuda, int):
            found[pid, gpu] = cuda
    return found


def _thread_names(database: Database) -> dict[int, str]:
    """Names of threads; the strings behind them are the names of programs and their threads."""
    rows = list(_rows(database, "ThreadNames", ("globalTid", "nameId")))
    wanted = {name for _, name in rows if isinstance(name, int)}
    strings = dict(_rows(database, "StringIds", ("id", "value"), wanted))
    named = ((thread, strings.get(name)) for thread, name in rows)
    return {thread: name for thread, name in named if isinstance(thread, int) and isinstance(name, str)}


def _diagnostics(database: Database) -> tuple[tuple[int, str], ...]:
    """The known sentences in which nsys reports that something is missing."""
    rows = _rows(database, "DIAGNOSTIC_EVENT", ("globalPid", "text"))
    said = ((pid, _SAID.match(text)) for pid, text in rows if isinstance(text, str))
    return tuple(dict.fromkeys((pid if isinstance(pid, int) else -1, match[0]) for pid, match in said if match))


def _rows(database: Database, table: str, columns: Sequence[str], ids: set[int] | None = None) -> list[tuple[Any, ...]]:
    """The rows of a small table, or those of some ids; none where it is not there or cannot be read."""
    if table not in database.tables:
        return []
    found: list[tuple[Any, ...]] = []
    groups = [""] if ids is None else [_where(sorted(ids)[at : at + 400]) for at in range(0, len(ids), 400)]
    try:
        for where in groups:
            for batch in database.batches(table, columns, where):
                found += zip(*batch, strict=True)
                if len(found) > _MOST_ROWS:
                    break
    except sqlite3.Error:
        return found
    return found


def _where(ids: list[int]) -> str:
    return f"WHERE id IN ({', '.join(map(str, ids))})"
