"""Reads results.db of rocprof (1): an SQLite database with a table for each kind of event.

    KERN   kernels, as in results.csv (only `Index` and `KernelName` where nothing ran)
    OPS    kernels seen through HIP (`--hip-trace`)      COPY   copies and fills
    HIP, HSA   calls                                     rocTX  annotations

`Index` of OPS and COPY is the `Index` of the HIP call that caused them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from diagnose.trace import Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.io.sqlite_file import MAGIC, Columns, Database, open_database, table_names
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.recording import Recording
from diagnose.trace.readers.rocm.rows import Process, Values
from diagnose.trace.schema import MISSING

_TABLES = ("KERN", "OPS", "COPY", "HIP", "HSA", "rocTX")
_TIMES = ("BeginNs", "EndNs")
_HSA_IDS = 1 << 40
"""Calls of HSA are numbered apart from those of HIP, whose numbers device work refers to."""

Add = Callable[[Process, Columns], None]


def read(path: Path) -> list[Trace]:
    """One trace for each process in the database."""
    recording = Recording(path)
    with open_database(path) as database:
        seen_by_hip = _read_ops(recording, database)
        if database.has("KERN", *_TIMES):
            if seen_by_hip:
                recording.warnings.append("KERN and OPS hold the same kernels; those of OPS were taken")
            else:
                _read_kernels(recording, database)
        for table, domain in (("HIP", "HIP_API"), ("HSA", "HSA_API"), ("rocTX", "MARKER_API")):
            _read_calls(recording, database, table, domain)
    return recording.traces("is a database of rocprof in which no kernel and no call was recorded")


def _read_kernels(recording: Recording, database: Database) -> None:
    columns = ("pid", *_TIMES, "KernelName", "gpu-id", "queue-id")

    def add(process: Process, part: Columns) -> None:
        _, begin, end, name, gpu, queue = part
        unknown = (None,) * len(begin)
        process.add_kernels(begin, end, name, recording.numbered(gpu), unknown, queue, unknown)

    each_process(recording, database.batches("KERN", columns), add)


def _read_ops(recording: Recording, database: Database) -> bool:
    """Whether there were kernels among them."""
    columns = ("pid", *_TIMES, "Name", "dev-id", "stream-id", "queue-id", "Index")

    def add_kernels(process: Process, part: Columns) -> None:
        _, begin, end, name, gpu, stream, queue, index = part
        process.add_kernels(begin, end, name, recording.numbered(gpu), stream, queue, index)

    def add_copies(process: Process, part: Columns) -> None:
        _, begin, end, name, gpu, stream, _, index = part
        ids = ids_of(index).tolist()
        if not database.has("COPY", "dev-id"):  # seen by HSA
            ids = [number + _HSA_IDS for number in ids]
        process.add_copies(begin, end, name, recording.numbered(gpu), stream, ids, (None,) * len(begin))

    if database.has("COPY", *_TIMES):
        each_process(recording, database.batches("COPY", columns), add_copies)
    if not database.has("OPS", *_TIMES):
        return False
    return each_process(recording, database.batches("OPS", columns), add_kernels) > 0


def _read_calls(recording: Recording, database: Database, table: str, domain: str) -> None:
    if not database.has(table, *_TIMES):
        return

    def add(process: Process, part: Columns) -> None:
        _, begin, end, name, tid, index = part
        ids: Values = ids_of(index).tolist()
        if table == "HSA":
            ids = [number + _HSA_IDS for number in ids]
        process.add_host(domain, begin, end, name, tid, ids)

    each_process(recording, database.batches(table, ("pid", *_TIMES, "Name", "tid", "Index")), add)


def each_process(recording: Recording, batches: Iterable[Columns], add: Add, otherwise: int = MISSING) -> int:
    """Give each process its rows; the first column is its id (`otherwise` where it is none). Counts the rows."""
    count = 0
    for batch in batches:
        rows: dict[int, list[int]] = {}
        for row, pid in enumerate(ids_of(batch[0]).tolist()):
            rows.setdefault(pid if pid != MISSING else otherwise, []).append(row)
            count += 1
        for pid, mine in rows.items():
            part = batch if len(rows) == 1 else tuple(tuple(column[row] for row in mine) for column in batch)
            add(recording.process(pid), part)
    return count


def _sniffs(head: bytes, path: Path) -> bool:
    if not head.startswith(MAGIC):
        return False
    return bool(table_names(path) & set(_TABLES[:3]))


READER = Reader("rocprof database", _sniffs, read)
