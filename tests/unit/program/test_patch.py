"""Patches: applying is all or nothing, reverting gives the exact bytes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patch_cases import CASES, TEXTS

from diagnose.errors import InputError, PatchConflict
from diagnose.program import patch
from diagnose.program.atomic import write_atomic
from diagnose.program.patch import Change, Patch


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    return root


@pytest.mark.parametrize("case", CASES)
def test_our_reader_understands_our_writer(tree: Path, case: str) -> None:
    path, before, after = CASES[case]
    if before is not None:
        (tree / path).write_bytes(before)
    written = Patch(tree, (Change(path, before, after),))
    assert patch.from_diff(written.diff_bytes(), tree).changes == written.changes


@settings(max_examples=60)
@given(before=st.dictionaries(st.sampled_from(["a.py", "b c.py", "d/e.py"]), TEXTS, min_size=1), data=st.data())
def test_applying_and_reverting_restores_the_exact_bytes(
    tree: Path, before: dict[str, bytes], data: st.DataObject
) -> None:
    after = {path: data.draw(TEXTS, label=path) for path in before}
    for path, content in before.items():
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_bytes(content)
    folder = tree.parent / "run"
    differ = [path for path in sorted(before) if before[path] != after[path]]
    made = Patch(tree, tuple(Change(path, before[path], after[path]) for path in differ))
    patch.store(made, folder)
    loaded = patch.load(folder)
    assert loaded == made
    if not differ:
        return
    patch.apply(loaded, folder)
    assert {path: (tree / path).read_bytes() for path in after} == after
    patch.revert(patch.load(folder), folder)
    assert {path: (tree / path).read_bytes() for path in before} == before
    assert patch.applied_at(folder) is None


def test_the_diff_of_texts_takes_encoding_and_mark_from_the_file(tree: Path) -> None:
    (tree / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    made = patch.make({"a.py": "x = 2\r\n"}, tree)
    assert made.changes == (Change("a.py", b"\xef\xbb\xbfx = 1\r\n", b"\xef\xbb\xbfx = 2\r\n"),)


def test_the_diff_reads_as_git_writes_it(tree: Path) -> None:
    (tree / "a.py").write_text("x = 1\n")
    assert patch.diff({"a.py": "x = 1\n"}, {"a.py": "x = 2\n"}, tree) == (
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    )


def test_lines_of_the_users_own_files_come_before_files_that_are_new(tree: Path) -> None:
    (tree / "train.py").write_text("x = 1\n")
    made = patch.make({"a_new.py": "added = 1\n", "train.py": "x = 2\n"}, tree)
    assert [change.path for change in made.changes] == ["train.py", "a_new.py"]


def test_a_text_that_did_not_change_is_no_change(tree: Path) -> None:
    (tree / "a.py").write_text("x = 1\n")
    assert patch.make({str(tree / "a.py"): "x = 1\n"}, tree).changes == ()


def two_files(tree: Path) -> Patch:
    (tree / "a.py").write_text("a\n")
    (tree / "b.py").write_text("b\n")
    return patch.make({"a.py": "A\n", "b.py": "B\n"}, tree)


def test_nothing_is_written_when_one_file_changed_since(tree: Path) -> None:
    made = two_files(tree)
    (tree / "b.py").write_text("edited\n")
    with pytest.raises(PatchConflict, match=r"^b\.py changed since the fix was measured"):
        patch.apply(made, tree.parent)
    assert (tree / "a.py").read_text() == "a\n"


def test_applying_twice_says_that_it_is_there_already(tree: Path) -> None:
    made = two_files(tree)
    patch.apply(made, tree.parent)
    with pytest.raises(PatchConflict, match="already"):
        patch.apply(made, tree.parent)


def test_revert_refuses_and_names_the_file_that_was_edited(tree: Path) -> None:
    made = two_files(tree)
    patch.apply(made, tree.parent)
    (tree / "a.py").write_text("A, and more\n")
    with pytest.raises(PatchConflict, match=r"^a\.py changed since the patch was applied"):
        patch.revert(made, tree.parent)
    assert (tree / "b.py").read_text() == "B\n"


def test_revert_completes_an_application_that_was_cut_off(tree: Path) -> None:
    made = two_files(tree)
    patch.apply(made, tree.parent)
    (tree / "b.py").write_text("b\n")  # as if the machine had stopped after the first file
    patch.revert(made, tree.parent)
    assert ((tree / "a.py").read_text(), (tree / "b.py").read_text()) == ("a\n", "b\n")


def test_permissions_and_links_are_kept(tree: Path) -> None:
    (tree / "real.py").write_text("a\n")
    (tree / "real.py").chmod(0o751)
    (tree / "link.py").symlink_to("real.py")
    patch.apply(patch.make({"link.py": "A\n"}, tree), tree.parent)
    assert (tree / "link.py").is_symlink()
    assert ((tree / "real.py").read_text(), (tree / "real.py").stat().st_mode & 0o777) == ("A\n", 0o751)


def test_a_hunk_that_moved_is_found_where_it_fits_once(tree: Path) -> None:
    diff = b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n-y\n+Y\n"
    (tree / "a.py").write_text("new first line\nx\ny\n")
    assert patch.from_diff(diff, tree).changes[0].after == b"new first line\nx\nY\n"


def test_a_hunk_that_fits_twice_is_refused(tree: Path) -> None:
    diff = b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n-y\n+Y\n"
    (tree / "a.py").write_text("0\nx\ny\nx\ny\n")
    with pytest.raises(PatchConflict, match="line 1 is not what the diff expects"):
        patch.from_diff(diff, tree)


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        (b"", "holds no unified diff"),
        (b"hello\n", "holds no unified diff"),
        (b"--- a/../x.py\n+++ b/../x.py\n@@ -1 +1 @@\n-a\n+b\n", "points out of the folder"),
        (b"--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "points out of the folder"),
        (b"--- a/.git/config\n+++ b/.git/config\n@@ -1 +1 @@\n-a\n+b\n", "points out of the folder"),
        (b"--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n x\n", "cut off"),
        (b"--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n?\n", "damaged"),
        (b"diff --git a/a.py b/b.py\nsimilarity index 90%\nrename from a.py\nrename to b.py\n", "not supported"),
        (b"diff --git a/a b/a\nGIT binary patch\nliteral 0\n", "not supported"),
    ],
)
def test_what_is_no_diff_that_we_can_apply_is_said_in_one_line(tree: Path, diff: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        patch.from_diff(diff, tree, "x.diff")
    assert "\n" not in str(caught.value)


def test_a_damaged_record_is_refused(tree: Path) -> None:
    folder = tree.parent / "run"
    patch.store(two_files(tree), folder)
    (folder / "originals" / "a.py").write_text("other\n")
    with pytest.raises(InputError):
        patch.load(folder)


def test_an_edit_outside_of_the_root_is_refused(tree: Path) -> None:
    with pytest.raises(InputError, match="lies outside"):
        patch.make({str(tree.parent / "x.py"): "a\n"}, tree)


def test_ctrl_c_leaves_nothing_beside_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "x.py", b"a = 1")
    assert list(tmp_path.iterdir()) == []
