"""A folder, or several files, are the ranks of one job: `analyze` names the ranks that are missing or there twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nsight_exports import NAMES, export, training

from diagnose.cli import main

WORDS = ("missing: what", "more than once", "of this job only")


def write(path: Path, rank: int | None, world_size: int | None = None) -> Path:
    """A recording of a few steps; `rank` is said in the file, or nowhere."""
    mark = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "dur": 1000}
    work = {**mark, "cat": "kernel", "name": "gemm", "dur": 900, "args": {"device": 0, "stream": 7}}
    events = [{**mark, "name": f"ProfilerStep#{step}", "ts": 1000 * step} for step in range(3)]
    events += [{**work, "ts": 1000 * step + 20} for step in range(3)]
    info = {"rank": rank} | ({"world_size": world_size} if world_size else {})
    header = {"distributedInfo": info} if rank is not None else {}
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": events}))
    return path


def warnings(capsys: pytest.CaptureFixture[str], *paths: Path) -> list[str]:
    assert main(["analyze", "--json", *map(str, paths)]) == 0
    said = json.loads(capsys.readouterr().out)
    return [warning for warning in said["warnings"] if any(word in warning for word in WORDS)]


def test_ranks_that_the_files_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, rank in enumerate((0, 1, 1, 4)):
        write(tmp_path / f"{'abcd'[number]}.json", rank, world_size=8)
    missing, twice = warnings(capsys, tmp_path)
    assert missing.startswith("ranks 2, 3, 5–7 of 8 are missing: what they did, and who waited for them, is unknown")
    assert twice.startswith("rank 1 is given more than once")


def test_ranks_that_only_the_names_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / f"rank-{rank}.json", None) for rank in (0, 3)]
    (missing,) = warnings(capsys, *paths)
    assert missing.startswith("ranks 1, 2 are missing")


def test_what_the_file_says_counts_more_than_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "rank-5.json", 0, world_size=2)
    write(tmp_path / "rank-6.json", 1, world_size=2)
    assert warnings(capsys, tmp_path) == []


def test_a_folder_of_one_rank_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", 1, world_size=3)
    (missing,) = warnings(capsys, tmp_path)
    assert missing.startswith(f"{tmp_path}: of the 3 ranks of this job only rank 1 is here")
    assert warnings(capsys, path) == [], "one file alone is no job"


def test_the_ranks_of_nsight_databases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 2):
        export(tmp_path / f"rank{rank}.sqlite", NAMES, **training())
    (missing,) = warnings(capsys, tmp_path)
    assert missing.startswith("rank 1 is missing")


def test_the_ranks_of_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 2):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        (folder / "facts.json").write_text(json.dumps({"rank": rank, "world_size": 3}))
        (folder / "steps.jsonl").write_text("".join(f'{{"t": {1000000 * step}}}\n' for step in range(1, 5)))
    (missing,) = warnings(capsys, tmp_path)
    assert missing.startswith("rank 1 of 3 is missing")


def test_a_complete_job_is_told_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        write(tmp_path / f"{rank}.json", rank, world_size=4)
    assert warnings(capsys, tmp_path) == []
