"""Completion: bash itself is asked what it would offer."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from watching import LIMIT_S

from diagnose.cli import COMMANDS, command_parsers, main
from diagnose.plugins import load

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def bash(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


def offered(script: str, *words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    asked = f"""{script}
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_diagnose
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    told = subprocess.run(
        ["bash", "--norc", "-c", asked, "bash", *words], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    assert told.stderr == ""
    return told.stdout.split()


@needs_bash
def test_commands_come_first(bash: str) -> None:
    assert offered(bash, "diagnose", "re") == ["revert", "report"]
    assert set(COMMANDS) <= set(offered(bash, "diagnose", ""))


@needs_bash
def test_each_command_offers_its_own_options(bash: str) -> None:
    for name, (_, parser) in command_parsers().items():
        there = {one for action in parser._actions for one in action.option_strings}
        assert set(offered(bash, "diagnose", name, "-")) == there


@needs_bash
def test_values_and_names_are_offered_where_they_are_known(bash: str) -> None:
    catalogue = load()
    assert offered(bash, "diagnose", "report", "--format", "ma") == ["markdown"]
    assert set(offered(bash, "diagnose", "fix", "--only", "")) == set(catalogue.fixers)
    assert set(offered(bash, "diagnose", "check", "use-s")) == {
        one for one in catalogue.fixers if one.startswith("use-s")
    }
    assert offered(bash, "diagnose", "explain", "input") == ["input-bound"]
    assert offered(bash, "diagnose", "cache", "ex") == ["export"]


@needs_bash
def test_where_nothing_is_known_files_are_left_to_the_shell(bash: str) -> None:
    assert offered(bash, "diagnose", "analyze", "tr") == []
    assert "complete -o default" in bash


def test_zsh_reads_the_same_through_its_own_bridge(bash: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(bash)
    assert "bashcompinit" in said


def test_fish_knows_every_option_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "complete -c diagnose -n '__fish_seen_subcommand_from fix' -l dry-run -d" in "\n".join(lines)
    options = sum(bool(action.option_strings) for _, parser in command_parsers().values() for action in parser._actions)
    assert (
        sum("__fish_seen_subcommand_from" in line and (" -l " in line or " -s " in line) for line in lines) == options
    )
    assert all(line.count("'") % 2 == line.count("\\'") % 2 for line in lines)


def test_another_shell_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
