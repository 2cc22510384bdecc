"""A copy of a program runs as the original does, and what it writes stays in the copy."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from watching import LIMIT_S

from diagnose.program import Program
from diagnose.program import copy as copying
from diagnose.program.copy import copy_environment, copy_program, editable_paths
from diagnose.program.guard import Guard


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "home" / "proj"
    (root / ".git").mkdir(parents=True)
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / "pkg" / "__init__.py").write_text("")
    (root / "pkg" / "__pycache__" / "x.pyc").write_text("")
    (root / "data").mkdir()
    (root / "data" / "set.txt").write_text("inside")
    (root.parent / "shared").mkdir()
    (root.parent / "shared" / "set.txt").write_text("beside")
    (root / "train.py").write_text("import pkg\nprint(open('data/set.txt').read())\n")
    return root


def output(program: Program) -> str:
    done = subprocess.run(
        program.command(sys.executable), cwd=program.cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def snapshot(root: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes, links as links."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_the_copy_has_the_sources_and_leaves_caches_and_history_out(project: Path, tmp_path: Path) -> None:
    copy = copy_program(Program.parse(["train.py"], cwd=project), tmp_path / "copy")
    assert copy.root == tmp_path / "copy" / project.relative_to("/")
    assert copy.entry == copy.root / "train.py"
    assert sorted(path.name for path in copy.root.iterdir()) == ["data", "pkg", "train.py"]
    assert not (copy.root / "pkg" / "__pycache__").exists()
    assert not (copy.root / "train.py").is_symlink()
    assert output(copy) == "inside"


def test_a_path_out_of_the_tree_leads_where_it_led(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text("print(open('../shared/set.txt').read())\n")
    assert output(copy_program(Program.parse(["train.py"], cwd=project), tmp_path / "copy")) == "beside"


def test_a_working_directory_above_the_root_keeps_its_relative_paths(project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text("print(open('shared/set.txt').read(), open('proj/data/set.txt').read())\n")
    copy = copy_program(Program.parse(["proj/train.py"], cwd=project.parent), tmp_path / "copy")
    assert output(copy) == "beside inside"


def test_a_working_directory_apart_from_the_root_keeps_its_relative_paths(project: Path, tmp_path: Path) -> None:
    apart = project.parent / "shared"
    (project / "train.py").write_text("print(open('set.txt').read(), open('../proj/data/set.txt').read())\n")
    copy = copy_program(Program.parse(["../proj/train.py"], cwd=apart), tmp_path / "copy")
    assert copy.entry is not None
    assert not copy.entry.is_symlink()
    assert output(copy) == "beside inside"


def test_an_absolute_word_into_the_root_leads_to_the_copy(project: Path, tmp_path: Path) -> None:
    words = [str(project / "train.py"), f"--data={project}/data", "/elsewhere", "--lr=1"]
    copy = copy_program(Program.parse(words, cwd=project), tmp_path / "copy")
    assert copy.words == (str(copy.root / "train.py"), f"--data={copy.root}/data", "/elsewhere", "--lr=1")


def test_large_files_and_data_folders_are_links(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LARGEST_COPIED_BYTES", 100)
    monkeypatch.setattr(copying, "MOST_COPIED_FILES", 3)
    (project / "weights.bin").write_bytes(b"0" * 101)
    (project / "images").mkdir()
    for number in range(4):
        (project / "images" / f"{number}.png").write_text("")
    copy = copy_program(Program.parse(["train.py"], cwd=project), tmp_path / "copy")
    assert (copy.root / "weights.bin").is_symlink()
    assert (copy.root / "images").is_symlink()
    assert not (copy.root / "pkg").is_symlink()
    assert not (copy.root / "data").is_symlink()


def test_search_paths_lead_to_the_copy(project: Path, tmp_path: Path) -> None:
    program = Program.parse(["train.py"], cwd=project)
    moved = copy_environment(program, tmp_path / "copy", {"PYTHONPATH": f"{project}:/other", "HOME": "/h"})
    assert moved["PYTHONPATH"].split(":")[:2] == [str(tmp_path / "copy" / project.relative_to("/")), "/other"]
    assert moved["HOME"] == "/h"


def test_editable_installs_are_found(project: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pth").write_text(f"import x\n{project}/src\n/elsewhere\n")
    (tmp_path / "__editable___b_finder.py").write_text(f"MAPPING = {{'pkg': '{project}/lib/pkg'}}\n")
    assert editable_paths(project, [str(tmp_path)]) == [project / "src", project / "lib"]


WRITES = {
    "a new file in a linked folder": "open('data/new.txt', 'w').write('x')",
    "over a linked file": "open('big.bin', 'w').write('x')",
    "at the end of a linked file": "open('big.bin', 'a').write('x')",
    "into a linked file": "open('big.bin', 'r+').write('x')",
    "a folder in a linked folder": "os.makedirs('data/deep/er')",
    "removing from a linked folder": "os.remove('data/set.txt')",
    "renaming over a linked file": "open('t', 'w').write('x'); os.replace('t', 'big.bin')",
    "deep in a linked folder": "pathlib.Path('data/sub/old.txt').write_text('x')",
    "beside, in a folder above": "open('../shared/new.txt', 'w').write('x')",
    "removing a whole folder": "import shutil; shutil.rmtree('data/sub')",
    "a database": "import sqlite3; sqlite3.connect('data/new.db').execute('create table a (b)')",
}


def guarded(program: Program, line: str, originals: list[Path], folder: Path) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).resolve().parents[3]
    script = (
        f"import os, pathlib, sys; sys.path.insert(0, {str(source)!r}); sys.dont_write_bytecode = True\n"
        "from diagnose.program.guard import Guard\n"
        f"guard = Guard({[str(path) for path in originals]!r}, {str(folder)!r}, lambda path: print('refused', path))\n"
        f"guard.install()\n{line}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=program.cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.fixture
def linked(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A copy in which `data` and `big.bin` are links."""
    monkeypatch.setattr(copying, "LARGEST_COPIED_BYTES", 5)
    (project / "big.bin").write_text("original")
    (project / "data" / "sub").mkdir()
    (project / "data" / "sub" / "old.txt").write_text("original")
    return copy_program(Program.parse(["train.py"], cwd=project), tmp_path / "copy")


@pytest.mark.parametrize("case", WRITES)
def test_what_the_copy_writes_lands_in_the_copy(project: Path, tmp_path: Path, linked: Program, case: str) -> None:
    assert (linked.root / "data").is_symlink()
    before = snapshot(project.parent)
    done = guarded(linked, WRITES[case], [project.parent], tmp_path / "copy")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert snapshot(project.parent) == before


def test_an_appended_file_keeps_what_was_in_it(tmp_path: Path, project: Path, linked: Program) -> None:
    guarded(linked, "open('big.bin', 'a').write('+')", [project], tmp_path / "copy")
    assert (linked.root / "big.bin").read_text() == "original+"
    assert (project / "big.bin").read_text() == "original"


@pytest.mark.parametrize("action", ["open({!r}, 'w')", "os.remove({!r})", "os.open({!r}, os.O_WRONLY)"])
def test_naming_the_original_is_refused_and_reported(
    tmp_path: Path, project: Path, linked: Program, action: str
) -> None:
    target = str(project / "big.bin")
    done = guarded(linked, action.format(target), [project], tmp_path / "copy")
    assert "PermissionError: [Errno 13] a trial on a copy may not write into the original" in done.stderr
    assert done.stdout == f"refused {target}\n"
    assert (project / "big.bin").read_text() == "original"


def test_reading_the_original_is_free(tmp_path: Path, project: Path, linked: Program) -> None:
    done = guarded(linked, f"print(open({str(project / 'big.bin')!r}).read())", [project], tmp_path / "copy")
    assert done.stdout == "original\n", done.stderr


def test_saving_a_checkpoint_over_a_linked_one_writes_the_copy(tmp_path: Path, project: Path, linked: Program) -> None:
    torch = pytest.importorskip("torch")
    guard = Guard([str(project)], str(tmp_path / "copy"))
    guard.prepare(str(linked.root / "big.bin"), truncates=True)
    torch.save({"a": 1}, linked.root / "big.bin")
    assert (project / "big.bin").read_text() == "original"


def test_copies_below_the_program_itself_hold_no_copies(project: Path) -> None:
    program = Program.parse(["train.py"], cwd=project)
    first = copy_program(program, project / "runs" / "copy-1")
    second = copy_program(program, project / "runs" / "copy-2")
    beside = copy_program(program, project / "copy-3")
    for copy in (first, second, beside):
        assert sorted(path.name for path in copy.root.iterdir() if path.name != "runs") == ["data", "pkg", "train.py"]
        assert list((copy.root / "runs").glob("*")) == []
        assert output(copy) == "inside"


def test_beyond_a_total_large_files_are_linked_and_sources_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(copying, "MOST_COPIED_BYTES", 5 << 20)
    for number in range(4):
        (home / f"part{number}.bin").write_bytes(bytes(2 << 20))
    (home / "train.py").write_text("pass\n")
    copied = copy_program(Program.parse(["train.py"], cwd=home), tmp_path / "copy")
    assert [(copied.root / f"part{number}.bin").is_symlink() for number in range(4)] == [False, False, True, True]
    assert not (copied.root / "train.py").is_symlink()
