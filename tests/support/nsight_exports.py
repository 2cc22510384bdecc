"""Small databases as `nsys export --type sqlite` writes them, with only the tables that a test names."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

Rows = Sequence[Mapping[str, object]]

EPOCH_NS = 1_700_000_000_000_000_000


def global_tid(pid: int, tid: int = 0) -> int:
    """A thread as nsys numbers it, over all machines of a session."""
    return (1 << 48) | (pid << 24) | tid


def export(path: Path, strings: Sequence[str] = (), **tables: Rows) -> Path:
    """Write a database. A column exists where a row names it; `strings` get the ids 0, 1, 2, …"""
    with sqlite3.connect(path) as connection:
        _write(connection, "StringIds", [{"id": number, "value": text} for number, text in enumerate(strings)])
        for name, rows in tables.items():
            _write(connection, name, rows)
    connection.close()
    return path


def _write(connection: sqlite3.Connection, table: str, rows: Rows) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return
    connection.execute(f'CREATE TABLE "{table}" ({", ".join(f"{column!r}" for column in columns)})'.replace("'", '"'))
    marks = ", ".join("?" * len(columns))
    connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(c) for c in columns] for row in rows])


def training(pid: int = 100, device: int = 0, steps: int = 4) -> dict[str, Rows]:
    """Tables of a small training run: per step a launch and its kernel, under an NVTX range named `step_…`."""
    thread, process = global_tid(pid, pid), global_tid(pid)
    at = [1_000_000 * step for step in range(1, steps + 1)]
    return {
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH_NS}],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            {"start": t, "end": t + 5_000, "globalTid": thread, "correlationId": i, "nameId": 0}
            for i, t in enumerate(at, start=1)
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {
                "start": t + 10_000,
                "end": t + 900_000,
                "deviceId": device,
                "streamId": 7,
                "correlationId": i,
                "globalPid": process,
                "demangledName": 1,
                "shortName": 2,
                "graphNodeId": None,
            }
            for i, t in enumerate(at, start=1)
        ],
        "NVTX_EVENTS": [
            {"start": t, "end": t + 950_000, "eventType": 59, "globalTid": thread, "text": f"step_{i}", "textId": None}
            for i, t in enumerate(at)
        ],
    }


NAMES = ("cudaLaunchKernel_v7000", "void gemm<float>(float*)", "gemm")
"""The strings that the tables of `training` refer to."""
