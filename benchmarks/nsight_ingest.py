"""Times reading an Nsight Systems database, against the plain way: `fetchall`, then an array.

    python benchmarks/nsight_ingest.py [--kernels 2000000] [--rounds 5]

A database with as many kernels as asked for and a launch call for each is made once, with the columns that nsys
2026 writes. Each measurement is a process of its own, so that its peak of memory is its own; the ways take turns. The
first two read the same 15 columns of the kernels; the last makes a whole trace of the database, launches included.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COLUMNS = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"),
    *("registersPerThread", "gridX", "gridY", "gridZ", "blockX", "blockY"),
)
ALL_COLUMNS = (
    *("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"),
    *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory"),
    *("localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId"),
    "sharedMemoryLimitConfig",
)
WAYS = ("fetchall", "numbers", "trace")
MB = 1_000_000


def main() -> None:
    """Measure and print a table; or, as a child, read once."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--database", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        read_once(options.way, options.database)
        return
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "run.sqlite"
        make(database, options.kernels)
        print(f"{options.kernels} kernels and launches, {database.stat().st_size / MB:.0f} MB, n={options.rounds}")
        rounds = [[child(way, database) for way in WAYS] for _ in range(options.rounds)]
    print(f"{'':<10}{'median s':>10}{'rows/s':>12}{'against fetchall':>18}{'peak MB':>9}")
    for number, way in enumerate(WAYS):
        seconds = statistics.median(one[number]["seconds"] for one in rounds)
        faster = statistics.median(one[0]["seconds"] / one[number]["seconds"] for one in rounds)
        peak = statistics.median(one[number]["peak_bytes"] for one in rounds) / MB
        rows = rounds[0][number]["rows"]
        print(f"{way:<10}{seconds:>10.2f}{rows / seconds:>12,.0f}{faster:>17.2f}x{peak:>9.0f}")


def child(way: str, database: Path) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--database", str(database)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600, cwd=ROOT)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def read_once(way: str, database: Path) -> None:
    """Read in one way, and print what it took as JSON."""
    begun = time.perf_counter()
    rows = {"fetchall": by_fetchall, "numbers": by_numbers, "trace": by_trace}[way](database)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rows": rows, "peak_bytes": peak}))


def by_fetchall(database: Path) -> int:
    """The plain way."""
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)
    table = np.array(connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {KERNELS}").fetchall())
    connection.close()
    return len(table)


def by_numbers(database: Path) -> int:
    """Read the columns as the readers do, and keep them whole."""
    from diagnose.trace.readers.io.sqlite_file import open_database
    from diagnose.trace.readers.io.sqlite_numbers import numbers

    # Identifiers and sizes fit 32 bits, as in the trace's tables; times and process ids do not.
    types = [np.int64 if name in ("start", "end", "globalPid") else np.int32 for name in COLUMNS]
    with open_database(database) as opened_database:
        parts = [
            [column.astype(kind) for column, kind in zip(part, types, strict=True)]
            for part in numbers(opened_database, KERNELS, COLUMNS)
        ]
    whole = []
    for _ in COLUMNS:  # column by column, so that only one is there twice
        whole.append(np.concatenate([part.pop(0) for part in parts]))
    return len(whole[0])


def by_trace(database: Path) -> int:
    """A whole trace, ready to be diagnosed."""
    from diagnose.trace.readers.nsight import nsight_sqlite

    (trace,) = nsight_sqlite.read(database)
    return len(trace.device) + len(trace.calls)


def make(path: Path, kernels: int) -> None:
    """A database with one process, 200 kernel names, and one launch before each kernel."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    strings = [*(f"void kernel_{i}<float>(float*)" for i in range(200)), "cudaLaunchKernel_v7000"]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings))
    connection.execute(f"CREATE TABLE {KERNELS} ({', '.join(f'{name} INTEGER' for name in ALL_COLUMNS)})")
    marks = ", ".join("?" * len(ALL_COLUMNS))
    connection.executemany(f"INSERT INTO {KERNELS} VALUES ({marks})", kernel_rows(kernels))
    calls = "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
    connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({calls}, returnValue INTEGER, callchainId INTEGER)")
    connection.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 200, 0, NULL)",
        ((10**9 + 20_000 * i, 10**9 + 20_000 * i + 4_000, PROCESS + 1, i + 1) for i in range(kernels)),
    )
    connection.commit()
    connection.close()


PROCESS = (1 << 48) + (4242 << 24)


def kernel_rows(count: int) -> Iterator[tuple[int | None, ...]]:
    """Kernels one after the other, with gaps."""
    draw = random.Random(0)
    time_ns = 10**9
    for number in range(count):
        start = time_ns + draw.randrange(500, 3_000)
        time_ns = start + draw.randrange(2_000, 30_000)
        name, grid = draw.randrange(200), draw.randrange(1, 4_000)
        stream = 7 if number % 5 else 13
        identity = (start, time_ns, 0, 1, None, stream, number + 1, PROCESS, name, name, name)
        yield (*identity, 0, 0, 32, grid, 1, 1, 256, 1, 1, 0, 0, 0, 0, number, 16_384, None, 0)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
