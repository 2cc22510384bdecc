"""What `diagnose analyze` reads where it is given a project, or the name of a run, in the place of a recording."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.session import Session

TRACE = Path(__file__).parents[3] / "sample_traces" / "h200_cuda_graph" / "rank0" / "trace.json.gz"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a recording, of the project that is the working directory."""
    monkeypatch.chdir(tmp_path)
    session = Session.create("train", root=tmp_path)
    session.close()
    (session.path / "rank0").mkdir()
    shutil.copy(TRACE, session.path / "rank0")
    (tmp_path / "train.py").write_text("pass\n")
    return session.path


@pytest.mark.parametrize("named", [".", ".diagnose", ".diagnose/runs", "the run's name"])
def test_a_project_stands_for_its_latest_run(run: Path, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(run)]) == 0
    _, direct = capsys.readouterr().out.split("\n\n", 1)
    word = run.name if named == "the run's name" else named
    assert main(["analyze", word]) == 0
    out, err = capsys.readouterr()
    assert out.split("\n\n", 1)[1] == direct  # but for the head, which has the path
    assert err.startswith(f"diagnose: {word} is no recording; this reads ")
    assert run.name in err


def test_a_run_that_saw_no_device_is_told_as_one_on_the_processor(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "rank0")
    shutil.copytree(TRACE.parents[2] / "cpu_demo" / "rank0", run / "rank0")
    assert main(["analyze", str(run)]) == 0
    out = capsys.readouterr().out
    assert "CPU only" in out
    assert "GPU rules skipped" in out


def test_the_page_names_time_of_a_device_only_where_there_is_one(tmp_path: Path) -> None:
    pages = []
    for name in ("cpu_demo", "h200_naive_gpt"):
        assert main(["report", "-o", str(tmp_path / f"{name}.html"), str(TRACE.parents[2] / name)]) == 0
        pages.append((tmp_path / f"{name}.html").read_text())
    assert [": its own time on the host." in page for page in pages] == [True, False]
    assert ["the device time of what each launched" in page for page in pages] == [False, True]


def test_recordings_that_lie_in_a_project_come_before_its_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "rank0" / "trace.json.gz", tmp_path / "mine.json.gz")
    assert main(["analyze", "."]) == 0
    assert "this reads" not in capsys.readouterr().err


def test_a_run_that_recorded_nothing_says_how_to_see_why(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "rank0")
    assert main(["analyze", str(run)]) == 2
    assert f"nothing was recorded in this run; `diagnose report {run}` says how it ended" in capsys.readouterr().err


def test_the_screen_as_json_is_the_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "--json", str(run)]) == 0
    viewed = capsys.readouterr().out
    assert main(["report", "--json", str(run)]) == 0
    assert viewed == capsys.readouterr().out
