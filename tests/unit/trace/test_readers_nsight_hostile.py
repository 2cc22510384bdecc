"""Databases that only look like Nsight Systems': a trace of what is sound, or one sentence."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nsight_exports import NAMES, export, global_tid, training

from diagnose.errors import DiagnoseError, InputError
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io.sqlite_file import open_database
from diagnose.trace.readers.io.sqlite_numbers import ABSENT, numbers
from diagnose.trace.readers.nsight import nsight_sqlite

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


def outcome(path: Path) -> list[Trace] | str:
    try:
        return open_traces([path])
    except DiagnoseError as error:
        message = str(error).removeprefix(str(path))
        assert message.strip()
        assert "\n" not in message
        return message


def kernels(*times: tuple[object, object], **more: object) -> list[dict[str, object]]:
    row = {"deviceId": 0, "streamId": 7, "correlationId": 1, "globalPid": global_tid(1), "demangledName": 0}
    return [{"start": start, "end": end, **row, **more} for start, end in times]


def test_rows_without_a_time_are_counted_and_left_out(tmp_path: Path) -> None:
    times = [(10, 20), (None, 20), ("soon", 30), (b"\xff", 30), (1 << 62, (1 << 62) + 1), (0, 0), (40, 35), (50, None)]
    (trace,) = open_traces([export(tmp_path / "run.sqlite", ["k"], **{KERNELS: kernels(*times)})])
    assert trace.device.start_ns.tolist() == [10, 40]
    assert trace.device.end_ns.tolist() == [20, 40]
    assert [warning.removeprefix(f"{trace.source}: ") for warning in trace.warnings] == [
        "6 events have no time that can be read and were left out",
        "1 events have a negative duration; they count as instants",
    ]


@pytest.mark.parametrize(
    "value", [None, "x", "1,2", "", b"\x00\xff", 1e300, -1e300, 2.5, 1 << 62, -(1 << 63), "9" * 40]
)
@pytest.mark.parametrize(
    "column", ["deviceId", "streamId", "correlationId", "globalPid", "demangledName", "graphNodeId"]
)
def test_values_of_any_type_and_size_leave_the_other_rows_alone(tmp_path: Path, column: str, value: object) -> None:
    rows = [*kernels((10, 20)), *kernels((30, 40), **{column: value}), *kernels((50, 60))]
    traces = open_traces([export(tmp_path / "run.sqlite", ["k"], **{KERNELS: rows})])
    starts = sorted(start for trace in traces for start in trace.device.start_ns.tolist())
    assert starts == [10, 30, 50]


def test_text_that_is_not_utf_8_is_replaced(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", ["k"], **{KERNELS: kernels((10, 20))})
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'6bff6b' AS TEXT)")
    connection.close()
    (trace,) = open_traces([path])
    assert trace.names[trace.device.name[0]] == "k\ufffdk"


@pytest.mark.parametrize(
    "sql",
    [
        f"CREATE VIEW {KERNELS} AS SELECT 1 AS start, 2 AS end",
        f"CREATE VIEW {KERNELS} AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start FROM n) SELECT * FROM n",
        f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start, end)",
        f"CREATE TABLE {KERNELS}(start, end GENERATED ALWAYS AS (zeroblob(1000000000)))",
        f"CREATE TABLE {KERNELS}(start PRIMARY KEY, end) WITHOUT ROWID; INSERT INTO {KERNELS} VALUES (1, 2)",
        f"CREATE TABLE {KERNELS}(rowid, _rowid_, oid, start, end); INSERT INTO {KERNELS} VALUES (1, 1, 1, 1, 2)",
        f'CREATE TABLE {KERNELS}("start""; DROP", start, end)',
        "CREATE TABLE NVTX_EVENTS(start, end, text); INSERT INTO NVTX_EVENTS VALUES (1, 2, zeroblob(60000000))",
    ],
)
def test_schemas_of_the_wrong_shape_are_never_run(tmp_path: Path, sql: str) -> None:
    path = export(tmp_path / "run.sqlite", NAMES, TARGET_INFO_GPU=[{"id": 0, "name": "G"}])
    with sqlite3.connect(path) as connection:
        connection.executescript(sql)
    connection.close()
    assert isinstance(outcome(path), str)


def test_triggers_do_not_fire(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", NAMES, **training())
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TRIGGER t AFTER UPDATE ON {KERNELS} BEGIN DELETE FROM {KERNELS}; END")
    connection.close()
    before = path.read_bytes()
    assert len(open_traces([path])[0].device) == 4
    assert path.read_bytes() == before


def test_a_table_that_breaks_off_gives_what_came_before(tmp_path: Path) -> None:
    many = kernels(*((10 * i, 10 * i + 5) for i in range(1, 60_001)))
    path = export(tmp_path / "run.sqlite", ["k"], **{KERNELS: many})
    data = path.read_bytes()
    with path.open("r+b") as file:  # pages in the middle are overwritten
        file.seek(len(data) // 2)
        file.write(b"\xff" * (len(data) // 4))
    (trace,) = open_traces([path])
    assert 0 < len(trace.device) < 60_000
    assert any(f"the table {KERNELS} is damaged" in warning for warning in trace.warnings)


def test_a_cut_off_database_is_an_answer(tmp_path: Path) -> None:
    whole = export(tmp_path / "run.sqlite", NAMES, **training(steps=500)).read_bytes()
    for share in (0.01, 0.1, 0.3, 0.5, 0.8, 0.99):
        path = tmp_path / f"cut{share}.sqlite"
        path.write_bytes(whole[: int(len(whole) * share)])
        outcome(path)


BASE: list[bytes] = []


@settings(max_examples=150)
@given(
    writes=st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8)), max_size=5),
    end=st.integers(0, 1 << 16) | st.none(),
)
def test_mutated_databases(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]], end: int | None
) -> None:
    if not BASE:
        gpus = [{"id": 0, "name": "G", "cuDevice": 0}]
        made = export(tmp_path_factory.mktemp("base") / "run.sqlite", NAMES, **training(), TARGET_INFO_GPU=gpus)
        BASE.append(made.read_bytes())
    data = bytearray(BASE[0])
    for at, piece in writes:
        at %= len(data)
        data[at : at + len(piece)] = piece
    path = tmp_path_factory.mktemp("mutated") / "run.sqlite"
    path.write_bytes(data[:end])
    outcome(path)


CELLS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(max_size=4) | st.binary(max_size=4)
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["start", "end", "globalPid", "globalTid", "correlationId", "bytes"]), CELLS),
    max_size=4,
)


@settings(max_examples=100)
@given(
    tables=st.dictionaries(
        st.sampled_from(
            [KERNELS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "TARGET_INFO_GPU"]
        ),
        ROWS,
        min_size=1,
    )
)
def test_tables_of_anything(
    tmp_path_factory: pytest.TempPathFactory, tables: dict[str, list[dict[str, object]]]
) -> None:
    outcome(export(tmp_path_factory.mktemp("tables") / "run.sqlite", NAMES, **tables))


@settings(max_examples=100)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=30))
@example([(None, "0")])
@example([(None, 1), ("1,2", 2)])
def test_numbers_are_those_of_sqlite(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, object]]
) -> None:
    path = export(tmp_path_factory.mktemp("numbers") / "t.sqlite", t=[{"a": a, "b": b} for a, b in rows])
    with open_database(path) as database:
        found = list(numbers(database, "t", ("a", "b", "none")))
        typed = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN CAST({0} AS INTEGER) END"
        plain = (
            [
                tuple(zip(*part, strict=True))
                for part in database.query(f"SELECT {typed.format('a')}, {typed.format('b')} FROM t")
            ]
            if rows
            else []
        )
    got = [row for part in found for row in zip(*(column.tolist() for column in part), strict=True)]
    expected = [(*(ABSENT if one is None else one for one in row), ABSENT) for part in plain for row in part]
    assert got == expected


def test_a_table_that_walks_in_circles_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(tmp_path / "run.sqlite", ["k"], **{KERNELS: kernels(*[(1, 2)] * 50)})
    monkeypatch.setattr("diagnose.trace.readers.io.sqlite_numbers._LEAST_ROW_BYTES", 1 << 20)
    (trace,) = nsight_sqlite.read(path)
    assert any("more rows than the file can hold" in warning for warning in trace.warnings)


def test_texts_that_rows_share_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(tmp_path / "run.sqlite", ["k"], **training())
    monkeypatch.setattr("diagnose.trace.readers.nsight.tables.file_bytes", lambda _: 3)
    (trace,) = nsight_sqlite.read(path)
    assert any("its texts are longer than the file" in warning for warning in trace.warnings)


def test_a_database_without_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    with pytest.raises(InputError, match="empty or damaged"):
        open_traces([path])
