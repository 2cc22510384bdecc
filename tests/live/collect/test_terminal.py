"""What a program that is started beside the user's own finds as its standard input."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnose.collect.terminal import input_terminal, output_terminal

PROGRAM = "import os, sys; print(tuple(os.get_terminal_size(0)), repr(sys.stdin.read()), repr(sys.stdin.readline()))"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let standard input be a terminal of 33 lines of 99 characters."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 99))
    with os.fdopen(slave) as ours:
        monkeypatch.setattr(sys, "__stdin__", ours)
        yield
    os.close(master)


@pytest.mark.usefixtures("terminal")
def test_a_program_asks_its_standard_input_for_the_size_of_the_terminal() -> None:
    with input_terminal() as stdin:
        told = subprocess.run([sys.executable, "-c", PROGRAM], stdin=stdin, capture_output=True, text=True, check=True)
    assert told.stdout == "(99, 33) '' ''\n"


@pytest.mark.usefixtures("terminal")
def test_under_a_screen_it_has_the_size_too_and_what_it_reads_ends_at_once() -> None:
    output: list[str] = []
    with output_terminal(output.append) as streams:
        subprocess.run([sys.executable, "-c", PROGRAM], check=True, **streams)
    assert "".join(output) == "(99, 33) '' ''\n"


def test_without_a_terminal_there_is_none_for_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as ours:
        monkeypatch.setattr(sys, "__stdin__", ours)
        with input_terminal() as stdin:
            assert stdin == subprocess.DEVNULL
