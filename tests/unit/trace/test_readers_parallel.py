"""Several large files are read side by side, with the result and the errors of one after another."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers import open_file, open_traces, parallel
from diagnose.trace.readers.io import reader_processes


def write_rank(folder: Path, rank: int, events: int = 20, name: str = "rank-{}.json") -> Path:
    path = folder / name.format(rank)
    work = [
        {"ph": "X", "cat": "kernel", "name": f"k{i % 3}", "pid": 0, "tid": 7, "ts": rank + i, "dur": 1}
        for i in range(events)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": work}))
    return path


def said(traces: list[Trace]) -> list[tuple[Any, ...]]:
    return [(*told(trace), trace.device.start_ns.tolist(), trace.device.name.tolist()) for trace in traces]


def told(trace: Trace) -> tuple[Any, ...]:
    return trace.source, trace.rank, trace.names, trace.threads, trace.warnings, trace.window_ns


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, whatever the size of the files."""
    monkeypatch.setattr(parallel, "LARGE_BYTES", 1)
    monkeypatch.setattr(parallel, "WORTH_BYTES", 1)
    monkeypatch.setattr(parallel, "START_BYTES", 0)
    monkeypatch.setattr(parallel, "cores", lambda: 2)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)


@pytest.mark.usefixtures("side_by_side")
class TestSideBySide:
    def test_every_file_is_told_of_as_it_is_read(self, tmp_path: Path) -> None:
        paths = [write_rank(tmp_path, rank) for rank in range(4)]
        told: list[tuple[int, int]] = []
        open_traces(paths, lambda done, total: told.append((done, total)))
        assert [total for _, total in told] == [4] * len(told)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[0][0] >= 1
        assert told[-1] == (4, 4)

    def test_other_processes_read_what_this_one_would(self, tmp_path: Path) -> None:
        paths = [write_rank(tmp_path, rank, events=5 + rank) for rank in range(4)]
        ahead = parallel.read_ahead(paths, open_file)
        assert sorted(ahead) == sorted(paths)
        for path in paths:
            assert said(ahead[path]) == said(open_file(path))

    def test_a_folder_of_ranks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for rank in range(3):
            write_rank(tmp_path, rank)
        together = said(open_traces([tmp_path]))
        monkeypatch.setattr(parallel, "cores", lambda: 1)
        assert together == said(open_traces([tmp_path]))
        assert [trace[1] for trace in together] == [0, 1, 2]

    def test_a_run_folder(self, tmp_path: Path) -> None:
        for rank in range(2):
            (tmp_path / f"rank{rank}").mkdir()
            write_rank(tmp_path / f"rank{rank}", rank, name="trace.json")
        assert [trace.rank for trace in open_traces([tmp_path])] == [0, 1]

    def test_the_error_of_the_first_faulty_file_is_told(self, tmp_path: Path) -> None:
        paths = [write_rank(tmp_path, rank, events=30 * rank) for rank in range(4)]
        for events in (1, 2):
            (tmp_path / f"rank-{events}.json").write_text(
                '{"traceEvents": [{"ph":"X","cat":"osrt","ts":1}]}' + " " * 99
            )
        with pytest.raises(InputError, match=r"rank-1\.json"):
            open_traces(paths[1:])

    def test_damage_is_told_of_the_file_that_has_it(self, tmp_path: Path) -> None:
        paths = [write_rank(tmp_path, rank) for rank in range(2)]
        text = paths[1].read_text()
        paths[1].write_text(text[: len(text) // 2])
        first, second = open_traces(paths)
        assert first.warnings == ()
        assert "ends in the middle" in second.warnings[0]

    def test_a_process_that_dies_costs_only_its_speed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader_processes, "_CHILD", "import os; os.abort()")
        for rank in range(3):
            write_rank(tmp_path, rank)
        assert [trace.rank for trace in open_traces([tmp_path])] == [0, 1, 2]

    def test_a_module_beside_the_traces_is_not_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        trap = "import pathlib; pathlib.Path('sprung').touch()"
        for name in ("msgspec", "numpy", "json", "diagnose"):
            (tmp_path / f"{name}.py").write_text(trap)
        paths = [write_rank(tmp_path, rank) for rank in range(2)]
        monkeypatch.chdir(tmp_path)
        assert sorted(parallel.read_ahead(paths, open_file)) == paths
        assert not (tmp_path / "sprung").exists()

    def test_names_with_odd_characters(self, tmp_path: Path) -> None:
        paths = [write_rank(tmp_path, rank, name='räng "{}" \n.json') for rank in range(2)]
        assert sorted(parallel.read_ahead(paths, open_file)) == sorted(paths)


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_small_files_start_no_process(self, tmp_path: Path) -> None:
        for rank in range(4):
            write_rank(tmp_path, rank)
        assert len(open_traces([tmp_path])) == 4

    @pytest.mark.usefixtures("side_by_side")
    def test_nor_does_one_file(self, tmp_path: Path) -> None:
        assert len(open_traces([write_rank(tmp_path, 0)])) == 1

    @pytest.mark.usefixtures("side_by_side")
    def test_nor_do_files_that_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DIAGNOSE_CACHE", str(tmp_path / "kept"))
        monkeypatch.setattr("diagnose.trace.cache.WORTH_KEEPING_S", 0.0)
        paths = [write_rank(tmp_path, rank) for rank in range(2)]
        first = [open_traces([path])[0] for path in paths]
        assert said(open_traces(paths)) == said(first)

    @pytest.mark.usefixtures("side_by_side")
    def test_nor_does_a_machine_with_one_core(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parallel, "cores", lambda: 1)
        assert len(open_traces([write_rank(tmp_path, rank) for rank in range(3)])) == 3


def test_the_largest_files_are_spread_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "START_BYTES", 0)
    sizes = {Path(name): size << 20 for name, size in (("a", 100), ("b", 300), ("c", 200), ("d", 100))}
    shares = parallel._shares(sizes, processes=2)
    assert [sorted(map(str, share.paths)) for share in shares] == [["b", "d"], ["a", "c"]]


class TestProcesses:
    def test_gzip_counts_with_what_it_holds(self, tmp_path: Path) -> None:
        path = tmp_path / "trace"
        path.write_bytes(gzip.compress(b"a" * 1000))
        assert reader_processes.estimated_bytes(path) == 1000
        path.write_bytes(b"a" * 1000)
        assert reader_processes.estimated_bytes(path) == 1000
        assert reader_processes.estimated_bytes(tmp_path / "absent") == 0

    def test_a_long_gzip_file_counts_with_more_than_its_end_can_say(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.gz"
        with path.open("wb") as file:
            file.write(gzip.compress(b"")[:-4])
            file.truncate(600 << 20)
            file.seek(0, 2)
            file.write((1000).to_bytes(4, "little"))
        assert reader_processes.estimated_bytes(path) == 2 * 2**32 + 1000

    def test_cores_can_be_bounded_and_shared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.setattr(reader_processes, "_QUOTA", Path("absent"))
        monkeypatch.delenv("DIAGNOSE_PROCESSES", raising=False)
        assert reader_processes.cores() == 8
        with reader_processes.sharing(3):
            assert reader_processes.cores() == 2
        monkeypatch.setenv("DIAGNOSE_PROCESSES", "3")
        assert reader_processes.cores() == 3
        monkeypatch.setenv("DIAGNOSE_PROCESSES", "0")
        assert reader_processes.cores() == 1
        monkeypatch.setenv("DIAGNOSE_PROCESSES", "many")
        assert reader_processes.cores() == 8

    @pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8)])
    def test_a_quota_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.delenv("DIAGNOSE_PROCESSES", raising=False)
        (tmp_path / "cpu.max").write_text(quota)
        monkeypatch.setattr(reader_processes, "_QUOTA", tmp_path / "cpu.max")
        assert reader_processes.cores() == cores
