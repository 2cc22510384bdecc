"""`diagnose report` and `diagnose view` on the command line."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import journals
import pytest

from diagnose.cli.recordings import report, view
from diagnose.cli.recordings.target import run_of
from diagnose.errors import InputError, UsageError
from diagnose.report import formats
from diagnose.session import Session


@pytest.fixture(name="run_folder")
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run below the working directory."""
    monkeypatch.chdir(tmp_path)
    session = Session.create("train")
    for event in journals.fixed():
        session.record(event)
    session.close()
    return session.path


def call(*words: str) -> int:
    """Run `diagnose report` with some words."""
    parser = argparse.ArgumentParser()
    report.add_parser(parser.add_subparsers())
    return report.run(parser.parse_args(["report", *words]))


def test_the_listed_formats_are_those_that_are_there() -> None:
    assert set(report.FORMATS) == set(formats())


@pytest.mark.usefixtures("run_folder")
def test_the_latest_run_is_reported_when_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert capsys.readouterr().out.startswith("train.py --data shakespeare.txt · NVIDIA H200")


def test_a_run_is_found_by_folder_and_by_name(run_folder: Path) -> None:
    assert run_of(run_folder) == run_folder
    named = run_of(Path(run_folder.name))
    assert named is not None
    assert named.resolve() == run_folder


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize("name", [".", ".diagnose", ".diagnose/runs"])
def test_a_project_is_its_latest_run(name: str, run_folder: Path) -> None:
    assert run_of(Path(name)) == run_folder


def test_a_name_that_is_no_run_is_answered_with_the_newest_runs(run_folder: Path) -> None:
    with pytest.raises(InputError, match=f"below .diagnose/runs; there is {run_folder.name}$"):
        run_of(Path("yesterday"))
    for age in range(1, 4):
        older = run_folder.parent / f"{age} days ago"
        older.mkdir()
        (older / "journal.jsonl").touch()
        os.utime(older / "journal.jsonl", (-age, -age))
    with pytest.raises(InputError, match=f"; there are {run_folder.name}, 1 days ago, 2 days ago and 1 older$"):
        run_of(Path("yesterday"))


def test_a_folder_without_runs_is_a_folder_of_recordings(tmp_path: Path) -> None:
    assert run_of(tmp_path) is None


@pytest.mark.usefixtures("run_folder")
def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it is a folder; name a file in it: -o .*report\.html"):
        call("-o", str(tmp_path))


@pytest.mark.parametrize("output", ["trace.json", "run/journal.jsonl"])
def test_a_report_does_not_take_the_place_of_what_it_is_made_from(
    run_folder: Path, tmp_path: Path, output: str
) -> None:
    run_folder.rename(tmp_path / "run")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    file = tmp_path / output
    before = file.read_bytes()
    target = file if file.name == "trace.json" else file.parent
    with pytest.raises(UsageError, match="the report is made from it; name another file with -o"):
        call(str(target), "-o", str(file))
    assert file.read_bytes() == before


def test_a_journal_of_which_no_line_is_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"type": "of another version"}\n{"torn\n')
    with pytest.raises(InputError, match="this version knows; read it with the diagnose that wrote it"):
        call(str(tmp_path))


def test_json_goes_to_stdout_whole(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(run_folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["program"] == "train.py --data shakespeare.txt"


@pytest.mark.usefixtures("run_folder")
def test_a_file_is_written_in_the_format_that_its_name_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("-o", "answer.md") == 0
    assert Path("answer.md").read_text().startswith("# train.py")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "wrote answer.md\n")


def test_a_torn_journal_still_gives_a_report(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = run_folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert call(str(run_folder)) == 0
    assert "was skipped: cut off, as after a kill" in " ".join(capsys.readouterr().out.split())


def test_no_run_and_no_file_are_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no run below"):
        call()
    with pytest.raises(InputError, match="no such file"):
        call("missing.json")


@pytest.mark.usefixtures("run_folder")
def test_a_file_that_cannot_be_written_is_said_plainly() -> None:
    Path("folder").mkdir()
    with pytest.raises(UsageError, match="cannot write folder"):
        call("-o", "folder")


def test_a_screen_needs_a_terminal(run_folder: Path) -> None:
    with pytest.raises(UsageError, match="needs a terminal"):
        view.run(argparse.Namespace(target=run_folder, json=False))
