"""The user's program keeps its words, whatever they look like."""

from __future__ import annotations

import argparse
import importlib

import pytest

from diagnose.cli.programs.argv_split import TAKES_VALUE, Split, program_of, split, split_commits
from diagnose.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py --steps 3", Split([], ["train.py", "--steps", "3"])),
        ("--steps 4 train.py --json", Split(["--steps", "4"], ["train.py", "--json"])),
        ("--steps=4 --plain train.py", Split(["--steps=4", "--plain"], ["train.py"])),
        ("--json -m package.train -x", Split(["--json"], ["package.train", "-x"], module=True)),
        (
            "--plain -- torchrun --nproc-per-node 2 t.py",
            Split(["--plain"], ["torchrun", "--nproc-per-node", "2", "t.py"], launcher=True),
        ),
        ("train.py -- -m x", Split([], ["train.py", "--", "-m", "x"])),
    ],
)
def test_options_end_where_the_program_begins(words: str, expected: Split) -> None:
    assert split(words.split()) == expected


@pytest.mark.parametrize(
    ("words", "commits", "expected"),
    [
        ("main HEAD train.py --steps 3", ["main", "HEAD"], Split([], ["train.py", "--steps", "3"])),
        ("--format sarif a b -m p.train", ["a", "b"], Split(["--format", "sarif"], ["p.train"], module=True)),
        ("a b --steps 2 -- torchrun t.py", ["a", "b"], Split(["--steps", "2"], ["torchrun", "t.py"], launcher=True)),
        ("a b -- train.py --lr 1", ["a", "b"], Split([], ["train.py", "--lr", "1"])),
        ("a", [], Split([], ["a"])),
    ],
)
def test_two_commits_come_before_the_program(words: str, commits: list[str], expected: Split) -> None:
    assert split_commits(words.split()) == (commits, expected)


@pytest.mark.parametrize("words", ["", "--steps 4", "-m", "--plain --"])
def test_a_call_without_a_program_says_what_is_missing(words: str) -> None:
    with pytest.raises(UsageError, match="is missing"):
        program_of(words.split())


def test_the_example_is_of_the_command_that_was_typed() -> None:
    with pytest.raises(UsageError, match=r"^a training script is missing; for example `diagnose fix train\.py`$"):
        program_of([], "fix")


@pytest.mark.parametrize("command", ["run", "watch", "fix", "check", "check_pr", "probe"])
def test_the_options_that_take_a_value_are_known(command: str) -> None:
    """An option missing from the list would swallow the script's name as its value, or not swallow its own."""
    subparsers = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"diagnose.cli.programs.{command}").add_parser(subparsers)
    (parser,) = subparsers.choices.values()
    valued = {flag for action in parser._actions if action.nargs is None for flag in action.option_strings}
    assert valued <= TAKES_VALUE
