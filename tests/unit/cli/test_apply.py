"""`diagnose apply` and `diagnose revert`, as typed."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.cli.patches import apply, revert
from diagnose.errors import InputError, PatchConflict, UsageError
from diagnose.program import atomic, patch
from diagnose.session import RunStarted, Session
from diagnose.source.settings.command_line import COMMAND_LINE

Command = Callable[..., int]


def typed(*words: str) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    apply.add_parser(commands)
    revert.add_parser(commands)
    args = parser.parse_args(words)
    return {"apply": apply.run, "revert": revert.run}[args.command](args)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_bytes(b"lr = 1\r\n")
    return tmp_path


def a_run(here: Path, name: str = "one") -> Path:
    folder = here / ".diagnose" / "runs" / name
    patch.store(patch.make({"train.py": "lr = 2\r\n"}, here), folder)
    return folder


def test_the_newest_run_is_applied_and_taken_back(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(here)
    assert typed("apply") == 0
    assert (here / "train.py").read_bytes() == b"lr = 2\r\n"
    assert capsys.readouterr().out == "changed train.py (+1 −1)\n"
    assert typed("revert") == 0
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"
    assert capsys.readouterr().out == "restored train.py (+1 −1)\n"


def test_where_the_latest_run_left_no_patch_it_is_said_whose_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(here, "one")
    (here / ".diagnose" / "runs" / "two").mkdir()
    (here / ".diagnose" / "runs" / "two" / "journal.jsonl").write_text("")
    assert typed("apply", "--dry-run") == 0
    assert "the latest run, two, left no patch; this is the one of one" in capsys.readouterr().err
    a_run(here, "two")
    assert typed("apply", "--dry-run") == 0
    assert capsys.readouterr().err == ""


def test_a_dry_run_prints_the_diff_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(here)
    assert typed("apply", "one", "--dry-run") == 0
    assert "+lr = 2" in capsys.readouterr().out
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"


def test_json_is_one_object(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(here)
    typed("apply", "--json")
    content = json.loads(capsys.readouterr().out)
    assert (content["action"], content["written"]) == ("changed", True)
    assert content["files"] == [{"path": "train.py", "added": 1, "removed": 1}]


def test_a_changed_command_is_printed_and_no_file_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / ".diagnose/runs/one"
    folder.mkdir(parents=True)
    before, after = "python\ntrain.py\nd\n", "python\ntrain.py\nd\n--amp\n"
    patch.store(patch.make({COMMAND_LINE: after}, here, {COMMAND_LINE: before}), folder)
    assert typed("apply") == 0
    told = capsys.readouterr()
    assert told.out == "python train.py d --amp\n"
    assert "no file changes; start it with this command" in told.err
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"
    assert typed("apply", "--json") == 0
    assert json.loads(capsys.readouterr().out)["command"] == ["python", "train.py", "d", "--amp"]


def test_a_foreign_diff_is_applied_and_taken_back(here: Path) -> None:
    (here / "fix.diff").write_bytes(b"--- train.py\n+++ train.py\n@@ -1 +1 @@\n-lr = 1\r\n+lr = 3\r\n")
    typed("apply", "fix.diff")
    assert (here / "train.py").read_bytes() == b"lr = 3\r\n"
    assert (here / ".diagnose" / ".gitignore").read_text() == "*\n"
    typed("revert")
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_run_folder_from_elsewhere_reaches_no_files_but_those_here_or_beside_it(
    here: Path, tmp_path_factory: pytest.TempPathFactory, command: str
) -> None:
    """A run folder names the files itself: one that was sent could name any on this machine."""
    others = tmp_path_factory.mktemp("others")
    (others / "notes.py").write_text("lr = 1\n")
    sent = here / "sent" / ".diagnose" / "runs" / "one"
    patch.store(patch.make({"notes.py": "lr = 2\n"}, others), sent)
    if command == "revert":
        patch.apply(patch.load(sent), sent)
    before = (others / "notes.py").read_text()
    with pytest.raises(PatchConflict, match="neither here nor beside that run; nothing was written"):
        typed(command, "sent/.diagnose/runs/one")
    assert (others / "notes.py").read_text() == before


def test_a_run_folder_is_applied_by_its_path_from_anywhere_to_the_files_beside_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = a_run(here)
    monkeypatch.chdir(tmp_path_factory.mktemp("anywhere"))
    typed("apply", str(folder))
    assert (here / "train.py").read_bytes() == b"lr = 2\r\n"


def test_a_diff_fits_from_a_folder_below_the_work_tree(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").mkdir()
    (here / "sub").mkdir()
    (here / "sub" / "fix.diff").write_bytes(b"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-lr = 1\r\n+lr = 3\r\n")
    monkeypatch.chdir(here / "sub")
    typed("apply", "fix.diff")
    assert (here / "train.py").read_bytes() == b"lr = 3\r\n"


def test_a_run_whose_files_changed_is_refused(here: Path) -> None:
    a_run(here)
    (here / "train.py").write_text("lr = 9\n")
    with pytest.raises(PatchConflict, match=r"train\.py changed since the fix was measured"):
        typed("apply")
    assert (here / "train.py").read_text() == "lr = 9\n"


def test_an_edited_file_is_not_reverted(here: Path) -> None:
    a_run(here)
    typed("apply")
    (here / "train.py").write_text("lr = 9\n")
    with pytest.raises(PatchConflict, match=r"train\.py changed since the patch was applied"):
        typed("revert")
    assert (here / "train.py").read_text() == "lr = 9\n"


def test_of_two_applied_patches_the_last_is_taken_back_first(here: Path) -> None:
    a_run(here)
    typed("apply")
    (here / "fix.diff").write_bytes(b"--- train.py\n+++ train.py\n@@ -1 +1 @@\n-lr = 2\r\n+lr = 3\r\n")
    typed("apply", "fix.diff")
    typed("revert")
    assert (here / "train.py").read_bytes() == b"lr = 2\r\n"
    typed("revert")
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        (["apply"], UsageError, "no run with a patch"),
        (["apply", "nothing"], InputError, "no such file, and no run of that name"),
        (["apply", "train.py"], InputError, "holds no unified diff"),
        (["apply", "."], InputError, "holds no patch"),
        (["revert"], UsageError, "no patch is applied"),
        (["revert", "nothing"], UsageError, "no such run"),
    ],
)
def test_a_wrong_call_says_so_in_one_line(words: list[str], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        typed(*words)
    assert "\n" not in str(caught.value)


def test_a_project_is_named_by_its_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_run(here)
    monkeypatch.chdir(here.parent)
    assert typed("apply", here.name) == 0
    assert (here / "train.py").read_bytes() == b"lr = 2\r\n"
    with pytest.raises(PatchConflict, match="hold this patch already"):
        typed("apply", here.name)
    assert typed("revert", here.name) == 0
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"


def test_below_the_project_the_command_for_it_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(here)
    (here / "sub").mkdir()
    monkeypatch.chdir(here / "sub")
    with pytest.raises(UsageError, match=f"no run with a patch here .*diagnose apply {here}`"):
        typed("apply")
    with pytest.raises(UsageError) as caught:
        typed("revert")
    assert "but in" not in str(caught.value)  # nothing is applied there either
    typed("apply", str(here))
    assert f"`diagnose revert {here}/.diagnose/runs/one` takes it back" in capsys.readouterr().err
    with pytest.raises(UsageError, match=f"no patch is applied here .*diagnose revert {here}`"):
        typed("revert")


def test_a_patch_goes_where_its_project_went(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "there").mkdir()
    project = here / "there" / "project"
    project.mkdir()
    (project / "train.py").write_bytes(b"lr = 1\r\n")
    a_run(project)
    copied = here / "copied"
    shutil.copytree(project, copied)
    monkeypatch.chdir(copied)
    typed("apply")
    assert ((copied / "train.py").read_bytes(), (project / "train.py").read_bytes()) == (b"lr = 2\r\n", b"lr = 1\r\n")
    moved = here / "moved"
    project.rename(moved)
    monkeypatch.chdir(moved)
    typed("apply")
    assert (moved / "train.py").read_bytes() == b"lr = 2\r\n"
    typed("revert")
    assert (moved / "train.py").read_bytes() == b"lr = 1\r\n"


def test_a_run_folder_without_its_project_says_where_that_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "project").mkdir()
    (here / "project" / "train.py").write_bytes(b"lr = 1\r\n")
    run = a_run(here / "project")
    run.rename(here / "kept")
    shutil.rmtree(here / "project")
    monkeypatch.chdir(here)
    says = (
        f"{here}/project, where the program was when it was measured, is not there; `git apply {here}/kept/patch.diff`"
    )
    with pytest.raises(PatchConflict, match=says):
        typed("apply", "kept")


def full_disk(*_args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_no_half_of_a_file_stays_beside_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_atomic(here / "train.py", b"lr = 2\r\n")
    assert [each.name for each in here.iterdir()] == ["train.py"]
    assert (here / "train.py").read_bytes() == b"lr = 1\r\n"


def test_what_could_not_be_written_does_not_count_as_applied(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(here)
    monkeypatch.setattr(patch, "write_sibling", full_disk)
    with pytest.raises(InputError, match="cannot be written"):
        typed("apply")
    assert patch.applied_at(run) is None


def test_what_was_applied_has_the_text_for_a_pull_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(here)
    Session(folder).record(RunStarted(command="fix", program="train.py", cwd=str(here), version="0.1.0"))
    typed("apply")
    assert "`diagnose report --format markdown` has the text for a pull request" in capsys.readouterr().err
