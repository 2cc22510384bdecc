"""A program's command line as a text that is edited like a file, and the program that an edited one starts."""

from __future__ import annotations

from dataclasses import replace

from diagnose.program import Program
from diagnose.source.settings.command_line import CommandLine, split_command

_PYTHON = "python"
"""What people type; the words behind it are the program's."""


def command_line(program: Program) -> CommandLine | None:
    """The words that start it, as they are typed in a shell; None where its own are not known among them."""
    own = program.own_arguments
    if own is None:
        return None
    words = program.command(_PYTHON) if program.kind != "launcher" else list(program.words)
    return CommandLine(tuple(words), own + len(words) - len(program.words))


def with_command_line(program: Program, text: str) -> Program:
    """The program that an edited command line starts."""
    line = command_line(program)
    if line is None:
        return program
    before = len(line.words) - len(program.words)
    return replace(program, words=split_command(text)[before:])
