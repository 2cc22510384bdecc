"""Patches as git reads and writes them, and what killed processes left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from patch_cases import CASES, TEXTS
from watching import LIMIT_S

from diagnose.program import patch
from diagnose.program.patch import Change, Patch


def git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=LIMIT_S, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    git(root, "init", "-q")
    git(root, "config", "core.autocrlf", "false")
    return root


@pytest.mark.parametrize("case", CASES)
def test_git_applies_what_we_write_to_the_same_bytes(tree: Path, case: str) -> None:
    path, before, after = CASES[case]
    if before is not None:
        (tree / path).write_bytes(before)
    diff = tree.parent / "p.diff"
    diff.write_bytes(Patch(tree, (Change(path, before, after),)).diff_bytes())
    checked = git(tree, "apply", "--check", str(diff))
    assert checked.returncode == 0, checked.stderr
    git(tree, "apply", str(diff))
    assert ((tree / path).read_bytes() if (tree / path).exists() else None) == after


@pytest.mark.parametrize("case", CASES)
def test_our_reader_understands_git(tree: Path, case: str) -> None:
    path, before, after = CASES[case]
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    if before is not None:
        (tree / path).write_bytes(before)
        git(tree, "add", "-A")
    if after is None:
        (tree / path).unlink()
    else:
        (tree / path).write_bytes(after)
    if before is None:
        git(tree, "add", "-N", "-A")
    diff = git(tree, "diff").stdout
    if before is None:
        (tree / path).unlink()
    else:
        (tree / path).write_bytes(before)
    assert patch.from_diff(diff, tree).changes == (Change(path, before, after),)


@settings(max_examples=40)
@given(before=TEXTS, after=TEXTS)
def test_git_accepts_the_diff_of_any_two_texts(tree: Path, before: bytes, after: bytes) -> None:
    (tree / "a.py").write_bytes(before)
    written = Patch(tree, (Change("a.py", before, after),)).diff_bytes()
    if before != after:
        (tree.parent / "p.diff").write_bytes(written)
        checked = git(tree, "apply", "--check", str(tree.parent / "p.diff"))
        assert checked.returncode == 0, checked.stderr


def test_what_a_killed_process_left_beside_a_source_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    home.mkdir()
    (home / "x.py").write_text("a = 1\n")
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    dead, living, theirs = (home / f".x.py.{name}.tmp" for name in (ended.pid, os.getppid(), "theirs"))
    for path in (dead, living, theirs):
        path.write_text("half")
    change = patch.make({"x.py": "a = 2\n"}, home)
    patch.apply(change, kept)
    assert [path.exists() for path in (dead, living, theirs)] == [False, True, True]
    dead.write_text("half")
    patch.revert(change, kept)
    assert [path.exists() for path in (dead, living, theirs)] == [False, True, True]
