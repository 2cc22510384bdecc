"""Real Nsight files of others, compared with plain SQL.

The files are no part of this repository; the tests are skipped where they are not beside it.
`test_public_recordings` diagnoses all of them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from diagnose.errors import InputError
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import WorkKind

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
_SUFFIXES = (".sqlite", ".nsys-rep", ".qdrep", ".ncu-rep")
FILES = sorted(path for path in TRACES.rglob("*") if path.suffix in _SUFFIXES) if TRACES.is_dir() else []

pytestmark = pytest.mark.skipif(not FILES, reason="no collection of public traces lies beside the repository")

TABLES = {
    WorkKind.KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    WorkKind.COPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    WorkKind.SET: "CUPTI_ACTIVITY_KIND_MEMSET",
}


def name_of(path: Path) -> str:
    return str(path.relative_to(TRACES))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sums_are_those_of_sql(path: Path) -> None:
    try:
        traces = open_traces([path])
    except InputError:
        assert rows_of(path) == dict.fromkeys(TABLES, (0, 0)), "device work was recorded, but not read"
        return
    found = {kind: [0, 0] for kind in TABLES}
    for trace in traces:
        for kind, sums in found.items():
            of_kind = trace.device.where(trace.device.kind == kind)
            sums[0] += len(of_kind)
            sums[1] += int((of_kind.end_ns - of_kind.start_ns).sum())
    assert {kind: tuple(sums) for kind, sums in found.items()} == rows_of(path)


def rows_of(path: Path) -> dict[WorkKind, tuple[int, int]]:
    """Rows and summed durations of each table of device work, by SQL alone."""
    found = dict.fromkeys(TABLES, (0, 0))
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        for kind, table in TABLES.items():
            if connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]:
                count, total = connection.execute(f"SELECT count(*), sum(end - start) FROM {table}").fetchone()
                found[kind] = (count, total or 0)
        connection.close()
    except sqlite3.DatabaseError:
        return found
    return found
