"""Which folder a program imports from first, and which of its folders are data that copies link."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.program import Program, copy


def test_a_script_imports_from_its_own_folder_and_a_module_from_where_it_was_started(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / ".git").mkdir()  # all of it is the user's
    for name in ("__init__.py", "train.py"):
        (package / name).touch()
    assert Program.parse(["package/train.py"], cwd=tmp_path).home == package
    assert Program.parse(["package.train"], module=True, cwd=tmp_path).home == tmp_path


@pytest.mark.parametrize(("files", "is_data"), [(2, False), (3, True)])
def test_a_folder_of_many_files_is_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, is_data: bool
) -> None:
    monkeypatch.setattr(copy, "MOST_COPIED_FILES", 2)
    (tmp_path / "below").mkdir()
    for number in range(files):
        (tmp_path / "below" / f"{number}.txt").touch()
    assert copy._is_data(tmp_path) is is_data


@pytest.mark.parametrize("name", ["model.py", "fast.pyx", "fast.pyi"])
def test_a_folder_with_python_in_it_is_none_however_much_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(copy, "LARGEST_COPIED_BYTES", 10)
    (tmp_path / "large.bin").write_bytes(bytes(11))
    assert copy._is_data(tmp_path)
    (tmp_path / name).touch()
    assert not copy._is_data(tmp_path)
