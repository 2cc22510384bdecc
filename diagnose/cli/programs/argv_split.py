"""Splits a command line where `diagnose`'s own options end and the user's program begins.

    diagnose run [options] SCRIPT ARGS…
    diagnose run [options] -m PACKAGE ARGS…
    diagnose run [options] -- LAUNCHER …
    diagnose check [options] FIXER [options] SCRIPT ARGS…    and so on
    diagnose check-pr [options] BASE HEAD [options] SCRIPT ARGS…    and so on

The program's words may look like our options, so they are cut off before argparse sees them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diagnose.errors import UsageError

TAKES_VALUE = frozenset(
    {
        "--steps",
        "--warmup",
        "--trace-ranks",
        "--name",
        "--fail-on",
        "--format",
        "--rules",
        "--fixers",
        "--allow",
        "--budget",
        "--only",
        "--skip",
        "--setting",
        "--probe",
        "--keep",
        "--prometheus",
    }
)
"""Options of the commands that start a program which are followed by a value; a test compares them with the parsers."""


@dataclass(frozen=True)
class Split:
    """A command line of `run` or `fix`, cut in two."""

    options: list[str]
    program: list[str]
    module: bool = False
    """The first word of `program` is a module (`-m`)."""
    launcher: bool = False
    """`program` is a whole command line (after `--`)."""


def split(words: list[str]) -> Split:
    """Cut the words after `run` or `fix` into options and program."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            return Split(words[:position], words[position + 1 :], launcher=True)
        if word == "-m":
            return Split(words[:position], words[position + 1 :], module=True)
        if not word.startswith("-"):
            return Split(words[:position], words[position:])
        position += 2 if word in TAKES_VALUE else 1
    return Split(words, [])


def program_of(words: list[str], command: str = "run") -> Split:
    """Split the words of a `command` that cannot do without a program. Raises UsageError when there is none."""
    return require_program(split(words), f"{command} train.py")


def split_named(words: list[str], instead: str) -> tuple[str | None, Split]:
    """A command line of `check` or `probe`, cut in two, and the name that comes first; none beside the option that
    stands `instead` of one."""
    found = split(words)
    if instead in found.options or found.module or found.launcher or not found.program:
        return None, found
    rest = split(found.program[1:])
    return found.program[0], replace(rest, options=[*found.options, *rest.options])


def split_commits(words: list[str]) -> tuple[list[str], Split]:
    """A command line of `check-pr`, cut in two, and the two commits that come first; fewer where they lack.

    Behind `--`, a script may stand as well as a launcher.
    """
    found = split(words)
    if found.module or found.launcher or len(found.program) < 2:
        return [], found
    rest = split(found.program[2:])
    is_script = rest.launcher and rest.program[:1] != [] and rest.program[0].endswith(".py")
    return found.program[:2], replace(
        rest, options=[*found.options, *rest.options], launcher=rest.launcher and not is_script
    )


def require_program(found: Split, example: str) -> Split:
    """Return the split if it contains a program. Raises UsageError otherwise."""
    if not found.program:
        what = {(True, False): "a module after -m", (False, True): "a command after --"}
        missing = what.get((found.module, found.launcher), "a training script")
        raise UsageError(f"{missing} is missing; for example `diagnose {example}`")
    return found
