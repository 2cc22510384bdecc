"""Following the files of a run of days, and keeping them small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.watching import run_files
from diagnose.watching.run_files import HeartbeatFiles, is_traced, keep_within, request_trace


def write(run: Path, text: str, rank: int = 0) -> Path:
    """Append to the heartbeats of a rank."""
    path = run / f"rank{rank}" / "heartbeats.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


def test_each_line_is_given_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    files = HeartbeatFiles(tmp_path)
    write(tmp_path, '{"i":1}\n{"i"')
    assert list(files.new()) == [(0, {"i": 1})]
    write(tmp_path, ":2}\n")
    write(tmp_path, '{"i":7}\n', rank=1)
    assert list(files.new()) == [(0, {"i": 2}), (1, {"i": 7})]
    assert list(files.new()) == []


def test_a_line_that_a_full_disk_cut_off_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, '{"i":1\n{"i":2}\n')
    assert list(HeartbeatFiles(tmp_path).new()) == [(0, {"i": 2})]


def test_a_long_file_begins_anew_and_no_line_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "ROTATE_BYTES", 100)
    files, seen = HeartbeatFiles(tmp_path), []
    for number in range(100):
        write(tmp_path, json.dumps({"i": number}) + "\n")
        seen += [beat["i"] for _, beat in files.new()]
    assert seen == list(range(100))
    kept = sorted(path.name for path in (tmp_path / "rank0").iterdir())
    assert kept == ["heartbeats.jsonl", "heartbeats.jsonl.1"]
    assert all(path.stat().st_size < 200 for path in (tmp_path / "rank0").iterdir())


def test_the_oldest_traces_go_and_the_newest_stays(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder = tmp_path / "changes" / f"{number:04d}" / "rank0"
        folder.mkdir(parents=True)
        (folder / "trace.json.gz").write_bytes(bytes(1_000))
    keep_within(tmp_path, 2_500)
    assert [path.name for path in sorted((tmp_path / "changes").iterdir())] == ["0002", "0003"]
    keep_within(tmp_path, 1)
    assert [path.name for path in sorted((tmp_path / "changes").iterdir())] == ["0003"]


def test_a_trace_is_asked_for_at_a_step_that_no_rank_has_reached(tmp_path: Path) -> None:
    folder = request_trace(tmp_path, 1, last_step=500, step_ns=1e8, ranks=[0, 3])
    request = json.loads((tmp_path / "trace_request.json").read_text())
    assert request == {"folder": str(folder), "step": 530, "steps": 4, "ranks": [0, 3]}
    assert not is_traced(folder, [0, 3])
    for rank in (0, 3):
        (folder / f"rank{rank}").mkdir(parents=True)
        (folder / f"rank{rank}" / "window.json").touch()
    assert is_traced(folder, [0, 3])
