"""A large document is read in parts, and says then what it says when it is read as a whole."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.trace import Trace
from diagnose.trace.readers.io.reader_processes import START_BYTES, Child
from diagnose.trace.readers.kineto import document_parts
from diagnose.trace.readers.kineto.document_parts import plan, read_in_parts
from diagnose.trace.readers.kineto.torch_profiler import read
from diagnose.trace.readers.kineto.whole_document import read_whole

HOSTILE = ("}, {", '}, {"ph": "X"', "],", "\\\\", '"', "é", "a")


def event(number: int, name: str = "op", **args: Any) -> dict[str, Any]:
    cat = ("cpu_op", "kernel", "cuda_runtime", "python_function", "user_annotation")[number % 5]
    arguments = {"External id": number, "correlation": number, **args}
    times = {"ts": number + 0.125, "dur": 1.5}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": number % 3, **times, "args": arguments}


def written(path: Path, events: list[Any], squeeze: bool = False, **members: Any) -> Path:
    document = {"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 3, "world_size": 8}, **members}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data, 1) if squeeze else data)
    return path


def said(trace: Trace) -> dict[Any, Any]:
    """What a trace says, with numbers of names, texts and threads replaced by what they stand for."""
    meanings: dict[str, Any] = {"name": trace.names, "thread": trace.threads, "collective": trace.collectives}
    meanings |= {"shapes": trace.texts, "dtypes": trace.texts}
    tables: dict[Any, Any] = {}
    for name in ("device", "calls", "ops", "frames", "ranges", "device_ranges"):
        table = getattr(trace, name)
        for column in table.columns():
            values, known = getattr(table, column.name).tolist(), meanings.get(column.name)
            tables[name, column.name] = values if known is None else [known[i] if i >= 0 else None for i in values]
    return {**tables, "rank": trace.rank, "world": trace.world_size, "warnings": trace.warnings}


@pytest.fixture(scope="class")
def in_parts() -> Iterator[None]:
    """Several parts, whatever the size; what another process would read is read here."""

    @contextmanager
    def here(module: str, job: Any, results: int) -> Iterator[Child]:
        assert module == document_parts.__name__
        files = [os.memfd_create("part") for _ in range(results)]
        document_parts.serve(json.loads(json.dumps(job)), files)
        yield _Done(files)
        for number in files:
            os.close(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_parts, "process", here)
        patch.setattr(document_parts, "START_BYTES", 0)
        patch.setattr(document_parts, "LEAST_BYTES", 100)
        patch.setattr(document_parts, "cores", lambda: 5)
        yield


class _Done(Child):
    def __init__(self, files: list[int]) -> None:
        object.__setattr__(self, "files", files)

    def wait(self) -> None:
        pass


def whole(path: Path, chunk_bytes: int = 400_000) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_parts, "cores", lambda: 1)
        (trace,) = read(path, chunk_bytes)
    return trace


@pytest.mark.usefixtures("in_parts")
class TestParts:
    @pytest.mark.parametrize("squeeze", [False, True])
    @pytest.mark.parametrize("chunk_bytes", [1, 300, 5000, 400_000])
    def test_parts_say_what_the_whole_says(self, tmp_path: Path, chunk_bytes: int, squeeze: bool) -> None:
        events = [event(i, f"op {i % 7}", **{"Input Dims": [[i % 3, 2]]} if i % 2 else {}) for i in range(200)]
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "loader"}})
        path = written(tmp_path / "trace.json", events, squeeze)
        assert read_in_parts(path, chunk_bytes) is not None
        (trace,) = read(path, chunk_bytes)
        assert said(trace) == said(whole(path))
        assert (trace.rank, trace.world_size) == (3, 8)
        assert {thread.name for thread in trace.threads} == {"", "loader"}

    @settings(max_examples=80)
    @given(
        texts=st.lists(st.sampled_from(HOSTILE), min_size=8, max_size=60),
        indent=st.sampled_from([None, 1]),
        chunk_bytes=st.sampled_from([1, 200, 1000]),
    )
    def test_boundaries_within_strings_and_arguments(
        self, tmp_path_factory: pytest.TempPathFactory, texts: list[str], indent: int | None, chunk_bytes: int
    ) -> None:
        events = [event(i, text, s=text, more=[{text: 1}, {"ph": "X"}]) for i, text in enumerate(texts)]
        path = tmp_path_factory.mktemp("parts") / "trace.json"
        path.write_text(json.dumps({"traceEvents": events, "tail": [{}, {}]}, indent=indent))
        (trace,) = read(path, chunk_bytes)
        assert said(trace) == said(whole(path))

    def test_collectives_and_what_only_some_parts_have(self, tmp_path: Path) -> None:
        collective = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
        events = [event(5 * i) for i in range(60)] + [event(5 * i + 1, "nccl", **collective) for i in range(60)]
        path = written(tmp_path / "trace.json", events)
        assert read_in_parts(path, 300) is not None
        (trace,) = read(path, 300)
        assert said(trace) == said(whole(path))
        assert (len(trace.ops), len(trace.device), len(trace.collectives)) == (60, 60, 1)

    def test_times_that_no_double_holds_in_one_part_only(self, tmp_path: Path) -> None:
        text = json.dumps({"traceEvents": [event(i) for i in range(100)]})
        path = tmp_path / "trace.json"
        path.write_text(text.replace('"ts": 90.125', '"ts": 1712195495505582.988'))
        assert read_in_parts(path, 300) is not None
        assert read(path, 300)[0].ops.start_ns[-1] == 1712195495505582988

    @pytest.mark.parametrize(
        "change", [('"name": "op 40"', '"name" "op 40"'), ('"op 150",', '"op 150,'), ('"op 199"', "")]
    )
    def test_a_corrupt_document_is_read_as_a_whole(self, tmp_path: Path, change: tuple[str, str]) -> None:
        path = written(tmp_path / "trace.json", [event(i, f"op {i}") for i in range(200)])
        path.write_text(path.read_text().replace(*change))
        assert read_in_parts(path, 300) is None
        (trace,) = read(path, 300)
        assert "no valid JSON" in trace.warnings[0]
        assert said(trace) == said(whole(path, 300))

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
    def test_a_document_that_is_cut_off(self, tmp_path: Path, share: float) -> None:
        path = written(tmp_path / "trace.json", [event(i, f"op {i}") for i in range(200)])
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        (trace,) = read(path, 300)
        assert "ends in the middle" in trace.warnings[0]
        assert said(trace) == said(whole(path, 300))

    def test_merged_ranks_are_read_as_a_whole(self, tmp_path: Path) -> None:
        path = written(tmp_path / "trace.json", [event(i, rank=i % 2, pid_raw=7) for i in range(200)])
        assert read_in_parts(path, 300) is None
        assert [trace.rank for trace in read(path, 300)] == [0, 1]

    def test_members_of_the_header_are_no_events(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        members = {"deviceProperties": [{"id": i, "name": "GPU"} for i in range(300)]}
        path.write_text(json.dumps({**members, "traceEvents": [event(i) for i in range(20)], "later": [{}, {}]}))
        assert said(read(path, 300)[0]) == said(whole(path))

    def test_warnings_count_what_all_parts_left_out(self, tmp_path: Path) -> None:
        odd = [{**event(0), "ts": None}, {**event(0), "dur": -1}, {**event(0), "cat": "quantum"}]
        path = written(tmp_path / "trace.json", [*odd, *[event(i) for i in range(200)], *odd])
        assert read_in_parts(path, 300) is not None
        (trace,) = read(path, 300)
        assert len(trace.warnings) == 3
        assert trace.warnings == whole(path).warnings


class TestPlan:
    def test_parts_follow_one_another_and_the_first_is_larger(self) -> None:
        size = 1000 << 20
        parts = plan(size, 4)
        assert [begin for begin, _ in parts[1:]] == [end for _, end in parts[:-1]]
        assert (parts[0][0], parts[-1][1]) == (0, None)
        assert parts[0][1] == size - 3 * (size - START_BYTES) // 4 > size // 4

    @pytest.mark.parametrize(("size_mib", "processes", "parts"), [(0, 8, 1), (100, 8, 1), (120, 8, 2), (9000, 1, 1)])
    def test_small_documents_are_left_whole(self, size_mib: int, processes: int, parts: int) -> None:
        assert len(plan(size_mib << 20, processes)) == parts


def test_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_parts, "START_BYTES", 0)
    monkeypatch.setattr(document_parts, "LEAST_BYTES", 100)
    monkeypatch.setattr(document_parts, "cores", lambda: 3)
    path = written(tmp_path / "trace.json", [event(i, f"op {i}") for i in range(300)])
    joined = read_in_parts(path, 2000)
    assert joined is not None
    assert joined.ranks[None].names.keys() == read_whole(path).ranks[None].names.keys()
    assert said(read(path)[0]) == said(whole(path))


def test_a_process_that_dies_costs_only_its_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_parts, "START_BYTES", 0)
    monkeypatch.setattr(document_parts, "LEAST_BYTES", 100)
    monkeypatch.setattr(document_parts, "cores", lambda: 2)
    monkeypatch.setattr("diagnose.trace.readers.io.reader_processes._CHILD", "import os; os.abort()")
    path = written(tmp_path / "trace.json", [event(i) for i in range(300)])
    assert read_in_parts(path, 2000) is None
    assert len(read(path)[0].ops) == 60
