"""A program as it was at a commit: tracked files from git, the rest from the work tree, the user's files untouched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from diagnose.errors import InputError, UsageError
from diagnose.program import Program
from diagnose.regressions.lines import line_map
from diagnose.regressions.snapshot import WORK_TREE, changed_files, commit_id, in_original, program_at


def git(folder: Path, *words: str) -> str:
    as_someone = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *as_someone, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: the second changes train.py, removes old.py and adds new.py; data.txt is not tracked."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("a = 1\nb = 2\n")
    (folder / "old.py").write_text("old = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "train.py").write_text("a = 1\nb = 3\n")
    (folder / "old.py").unlink()
    (folder / "new.py").write_text("new = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "second")
    (folder / "data.txt").write_text("data\n")
    return folder


def at(repository: Path, commit: str, folder: Path) -> Path:
    program = Program.parse(["train.py"], cwd=repository)
    return program_at(program, commit, folder).root


def test_tracked_files_are_those_of_the_commit_and_others_those_of_the_work_tree(
    repository: Path, tmp_path: Path
) -> None:
    before = at(repository, "HEAD~1", tmp_path / "base")
    assert (before / "train.py").read_text() == "a = 1\nb = 2\n"
    assert (before / "old.py").exists() and not (before / "new.py").exists()
    assert (before / "data.txt").read_text() == "data\n"
    now = at(repository, "HEAD", tmp_path / "head")
    assert not (now / "old.py").exists() and (now / "new.py").exists()


def test_the_work_tree_is_what_it_is(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("a = 9\n")
    assert (at(repository, WORK_TREE, tmp_path / "head") / "train.py").read_text() == "a = 9\n"


def test_nothing_is_written_behind_a_link(repository: Path, tmp_path: Path) -> None:
    """A folder of the commit that is a link now leads out of the copy."""
    git(repository, "rm", "-q", "new.py")
    (repository / "data").mkdir()
    (repository / "data" / "set.txt").write_text("tracked\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "third")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "set.txt").write_text("mine\n")
    (repository / "data" / "set.txt").unlink()
    (repository / "data").rmdir()
    (repository / "data").symlink_to(elsewhere)
    at(repository, "HEAD", tmp_path / "copy")
    assert (elsewhere / "set.txt").read_text() == "mine\n"


def test_a_name_that_is_no_commit_says_what_would_be(repository: Path) -> None:
    with pytest.raises(UsageError, match="nonsense is no commit"):
        commit_id(repository, "nonsense")
    with pytest.raises(UsageError, match="is no commit"):
        commit_id(repository, "--help")
    assert commit_id(repository, "HEAD") == git(repository, "rev-parse", "HEAD")


def test_a_commit_without_the_script_is_refused(repository: Path, tmp_path: Path) -> None:
    program = Program.parse(["new.py"], cwd=repository)
    with pytest.raises(InputError, match="is no file of commit HEAD~1"):
        program_at(program, "HEAD~1", tmp_path / "base")


def test_changed_files_are_told_by_their_path_below_the_root(repository: Path) -> None:
    assert changed_files(repository, "HEAD~1", "HEAD") == ["new.py", "old.py", "train.py"]


def test_files_of_a_copy_are_told_by_their_path_below_the_root(tmp_path: Path) -> None:
    root, folder = Path("/home/u/project"), tmp_path / "base"
    assert in_original(f"{folder}/home/u/project/models/net.py", root, folder) == "models/net.py"
    assert in_original("/usr/lib/python3/ast.py", root, folder) == "/usr/lib/python3/ast.py"


def test_lines_that_stayed_are_found_where_they_were() -> None:
    lines = line_map({"train.py": ("a\nb\nc\n", "a\nnew\nb\nC\n")})
    assert [lines.before(("train.py", number)) for number in (1, 2, 3, 4)] == [
        ("train.py", 1),
        ("train.py", 0),
        ("train.py", 2),
        ("train.py", 0),
    ]
    assert lines.before(("other.py", 8)) == ("other.py", 8)
    assert [number for number in (1, 2, 3, 4) if lines.is_changed(("train.py", number))] == [2, 4]
    assert lines.first_change == ("train.py", 2)


def test_an_edited_line_is_the_one_before_and_has_changed() -> None:
    before = "with torch.no_grad():\n    wanted = teacher(x)\nloss = (model(x) - wanted).mean()\n"
    after = "wanted = teacher(x)\nprint(step)\nloss = (model(x) - wanted.detach()).mean()\n"
    lines = line_map({"train.py": (before, after)})
    assert [lines.before(("train.py", number))[1] for number in (1, 2, 3)] == [2, 0, 3]
    assert all(lines.is_changed(("train.py", number)) for number in (1, 2, 3))
