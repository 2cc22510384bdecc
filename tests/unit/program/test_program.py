"""What the user typed becomes a program: its entry, its root, and the files that are his."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from diagnose.errors import InputError, UsageError
from diagnose.program import Program


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "proj" / "pkg").mkdir(parents=True)
    (tmp_path / "proj" / ".git").mkdir()
    (tmp_path / "proj" / "pkg" / "__main__.py").write_text("")
    (tmp_path / "proj" / "pkg" / "tool.py").write_text("")
    (tmp_path / "proj" / "scripts").mkdir()
    (tmp_path / "proj" / "scripts" / "train.py").write_text("x = 1\n")
    return tmp_path / "proj"


def test_a_script_with_its_arguments(project: Path) -> None:
    program = Program.parse(["scripts/train.py", "--lr", "1"], cwd=project)
    assert (program.kind, program.entry, program.root) == ("script", project / "scripts" / "train.py", project)
    assert program.command("python") == ["python", "scripts/train.py", "--lr", "1"]
    assert (program.name, program.typed) == ("train", "scripts/train.py --lr 1")


def test_a_module_with_its_arguments(project: Path) -> None:
    program = Program.parse(["pkg", "a b"], module=True, cwd=project)
    assert program.entry == project / "pkg" / "__main__.py"
    assert program.command("python") == ["python", "-m", "pkg", "a b"]
    assert program.typed == "-m pkg 'a b'"
    assert Program.parse(["pkg.tool"], module=True, cwd=project).entry == project / "pkg" / "tool.py"
    assert Program.parse(["json.tool"], module=True, cwd=project).entry is None


@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "scripts/train.py", "--lr", "1"],
        [sys.executable, "scripts/train.py"],
        ["env", "A=1", "scripts/train.py", "other.py"],
        ["bash", "-c", "ulimit -n 4096 && python scripts/train.py"],
        ["env", "bash", "-lc", "python 'scripts/train.py' --lr 1"],
        ["bash", "-c", "python scripts/train.py; echo done"],
    ],
)
def test_a_launcher_starts_the_first_script_of_the_users(project: Path, words: list[str]) -> None:
    program = Program.parse(words, launcher=True, cwd=project)
    assert (program.kind, program.entry) == ("launcher", project / "scripts" / "train.py")
    assert program.command("ignored") == words
    assert program.typed.startswith("-- ")


def test_a_line_for_a_shell_is_no_name_of_a_script(project: Path) -> None:
    for line in ("cd elsewhere; python gone.py", "echo 'open quote.py"):
        assert Program.parse(["bash", "-c", line], launcher=True, cwd=project).entry is None


def test_a_line_for_a_shell_may_be_longer_than_the_name_of_a_file(project: Path) -> None:
    note = "n" * 300
    found = Program.parse(["bash", "-c", f"python scripts/train.py --note {note}"], launcher=True, cwd=project)
    assert found.entry == project / "scripts" / "train.py"
    for line in (f"python gone.py --note {note}", f"echo 'open quote {note}.py"):
        assert Program.parse(["bash", "-c", line], launcher=True, cwd=project).entry is None


def test_a_script_whose_name_holds_a_space_is_found(project: Path) -> None:
    (project / "train me.py").write_text("")
    program = Program.parse([sys.executable, "train me.py"], launcher=True, cwd=project)
    assert program.entry == project / "train me.py"


def test_a_launcher_with_a_module(project: Path) -> None:
    words = [sys.executable, "-m", "pkg.tool", "--x"]
    assert Program.parse(words, launcher=True, cwd=project).entry == project / "pkg" / "tool.py"


def test_a_launcher_is_found_beside_an_interpreter_that_is_not_on_the_path(project: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun-of-this-environment").write_text("")
    program = Program(("torchrun-of-this-environment", "x"), "launcher", None, project, project)
    assert program.command(str(tmp_path / "bin" / "python"))[0] == str(
        tmp_path / "bin" / "torchrun-of-this-environment"
    )


def test_the_root_is_the_work_tree_or_else_the_folder_of_the_script(project: Path, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "a.py").write_text("")
    assert Program.parse(["../alone/a.py"], cwd=project).root == tmp_path / "alone"
    assert Program.parse(["train.py"], cwd=project / "scripts").root == project


def test_a_home_folder_is_never_the_root(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert Program.parse(["scripts/train.py"], cwd=project).root == project / "scripts"


@pytest.mark.parametrize(
    ("path", "owned"),
    [
        ("scripts/train.py", True),
        ("pkg/tool.py", True),
        (".venv/lib/python3.12/site-packages/torch/__init__.py", False),
        ("env/lib/x.py", False),
        (".diagnose/runs/x/train.py", False),
        ("../other/x.py", False),
        ("/usr/lib/python3/os.py", False),
        ("<string>", True),
    ],
)
def test_files_of_the_users_are_told_from_those_of_environments(project: Path, path: str, owned: bool) -> None:
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").write_text("")
    assert Program.parse(["scripts/train.py"], cwd=project).owned(path) is owned


@pytest.mark.parametrize(
    ("words", "module", "launcher", "error", "says"),
    [
        (["gone.py"], False, False, UsageError, r"^gone\.py: no such script$"),
        (["scripts"], False, False, UsageError, "is a folder"),
        (["weights.bin"], False, False, InputError, "is not a Python script"),
        (["notes.txt"], False, False, InputError, "is a file of data, not a program"),
        (["go.sh"], False, False, InputError, "or start it by its shell: `-- bash go.sh`"),
        (["ls"], False, False, UsageError, "a launcher goes after"),
        (["loose.py"], True, False, UsageError, "is not the name of a module"),
        (["scripts/train.py"], True, False, UsageError, "is not the name of a module"),
        (["scripts"], True, False, UsageError, "no __main__"),
        (["no-such-launcher-here", "x"], False, True, UsageError, "no such command"),
        ([sys.executable, "gone.py"], False, True, UsageError, r"^gone\.py: no such script"),
        ([], False, False, UsageError, "no program was named"),
    ],
)
def test_a_wrong_program_is_said_in_one_line(
    project: Path, words: list[str], module: bool, launcher: bool, error: type[Exception], says: str
) -> None:
    (project / "weights.bin").write_bytes(b"\x80\x02\x00\xff")
    (project / "notes.txt").write_text("not python at all, as it were\n")
    (project / "go.sh").write_text("#!/bin/bash\npython train.py\n")
    (project / "loose.py").write_text("")
    with pytest.raises(error, match=says) as caught:
        Program.parse(words, module=module, launcher=launcher, cwd=project)
    assert "\n" not in str(caught.value)


def test_a_script_is_known_by_its_ending_whatever_starts_it(project: Path) -> None:
    (project / "fit.py").write_text("#!/usr/bin/env -S uv run --script\nprint()\n")
    assert Program.parse(["fit.py"], cwd=project).entry == project / "fit.py"


def test_a_script_with_a_syntax_error_is_left_to_its_interpreter(project: Path) -> None:
    (project / "broken.py").write_text("def (:\n")
    assert Program.parse(["broken.py"], cwd=project).entry == project / "broken.py"
