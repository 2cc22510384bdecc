"""An option of diagnose that stands after the script goes to the script; where no file of it has such, that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.cli.programs.argv_split import split
from diagnose.cli.programs.late_options import late_options

KNOWN = ("--budget", "--dry-run", "--help", "--steps", "--plain")
PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"{PARSER}parser.add_argument('--lr')\n")
    return tmp_path


def warned(line: str) -> list[str]:
    return list(late_options(["fix"], split(line.split()), KNOWN))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("train.py --budget 3m", "diagnose fix --budget 3m train.py"),
        ("train.py --lr 1 --budget=3m", "diagnose fix --budget=3m train.py --lr 1"),
        ("--plain train.py --dry-run --lr 1", "diagnose fix --plain --dry-run train.py --lr 1"),
        ("-m train --budget 3m", "diagnose fix --budget 3m -m train"),
        ("-- torchrun train.py --budget 3m", "diagnose fix --budget 3m -- torchrun train.py"),
    ],
)
def test_the_right_order_is_said(line: str, meant: str) -> None:
    (warning,) = warned(line)
    assert warning.endswith(f"to give it to diagnose: `{meant}`")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "line",
    [
        "train.py --lr 3",  # the program's own
        "--budget 3m train.py",  # in its place
        "-- torchrun --steps 3 train.py",  # the launcher's own
        "train.py --help",  # every parser's
        "-- bash -c train.py",  # nobody knows what the program reads
    ],
)
def test_other_words_are_left_alone(line: str) -> None:
    assert not warned(line)


@pytest.mark.parametrize("named", ["'--dry-run'", "'--dry_run'", "dry_run: bool"])
def test_an_option_that_the_script_names_is_its_own(folder: Path, named: str) -> None:
    (folder / "train.py").write_text(f"{PARSER}# {named}\n")
    assert not warned("train.py --dry-run")


def test_an_option_that_an_imported_file_names_is_its_own(folder: Path) -> None:
    (folder / "train.py").write_text("import options\n")
    (folder / "options.py").write_text(f"{PARSER}parser.add_argument('--budget')\n")
    assert not warned("train.py --budget 3")


def test_the_command_warns_and_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("raise SystemExit\n")
    main(["fix", "--only", "no-such-fixer", "train.py", "--budget", "3m"])
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("diagnose: --budget stands after the script, so the script gets it, and no file of")
    assert "no-such-fixer is no fixer" in said[-1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("check no-such-fixer train.py --budget 3m", "diagnose check no-such-fixer --budget 3m train.py"),
        ("check --all train.py --budget 3m", "diagnose check --all --budget 3m train.py"),
        ("probe no-such-probe --steps 2 train.py --json", "diagnose probe no-such-probe --steps 2 --json train.py"),
    ],
)
def test_a_command_keeps_the_name_that_comes_first(
    line: str, meant: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagnose.cli.programs.check.run", lambda _: 0)
    monkeypatch.setattr("diagnose.cli.programs.probe.run", lambda _: 0)
    main(line.split())
    assert capsys.readouterr().err.splitlines()[0].endswith(f"to give it to diagnose: `{meant}`")
