"""Real Nsight files of others: each is read or refused in one sentence, diagnosed, and compared with plain SQL.

The files are no part of this repository; the tests are skipped where they are not beside it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.errors import InputError
from diagnose.plugins import load
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import WorkKind

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
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
def test_every_file_is_read_or_refused_and_its_sums_are_those_of_sql(path: Path) -> None:
    try:
        traces = open_traces([path])
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error)
        assert rows_of(path) == dict.fromkeys(TABLES, (0, 0)), "device work was recorded, but not read"
        return
    found = {kind: [0, 0] for kind in TABLES}
    for trace in traces:
        assert trace.window_ns is not None
        for table in (trace.device, trace.calls, trace.ops, trace.ranges):
            assert (table.end_ns >= table.start_ns).all()
            assert (table.start_ns[1:] >= table.start_ns[:-1]).all()
            assert ((table.name >= 0) & (table.name < len(trace.names))).all()
        for kind, sums in found.items():
            of_kind = trace.device.where(trace.device.kind == kind)
            sums[0] += len(of_kind)
            sums[1] += int((of_kind.end_ns - of_kind.start_ns).sum())
    assert {kind: tuple(sums) for kind, sums in found.items()} == rows_of(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_that_is_read_is_diagnosed(path: Path) -> None:
    try:
        traces = open_traces([path])
    except InputError:
        return
    found = diagnose(traces, load())
    assert not [warning for warning in found.warnings if warning.startswith("rule ")]
    for rank in found.per_rank:
        accounting = rank.accounting
        parts = accounting.compute + accounting.exposed_comm + accounting.exposed_copy + sum(accounting.idle.values())
        assert parts == rank.steps.total_ns
    # Where device work was recorded, the counted steps hold some of it.
    if any(trace.has_device for trace in traces):
        assert any(rank.accounting.compute + rank.accounting.exposed_copy for rank in found.per_rank)


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
