"""Notes options of `diagnose` that stand after the script, which takes them for its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence

from diagnose.cli.programs.argv_split import TAKES_VALUE, Split
from diagnose.errors import InputError
from diagnose.program import Program
from diagnose.program.reached_files import read_reached
from diagnose.program.source import read_source

_HELP = "--help"
"""The option that parsers of all kinds take, unnamed."""


def late_options(command: Sequence[str], words: Split, known: Collection[str]) -> Iterator[str]:
    """Yield a warning for each `known` option of a command (`run`, `probe NAME`) that only the program's own words
    have, where no file of the program names it. Raises UsageError or InputError where there is no such program.
    """
    known = set(known) - {_HELP}
    if not any(_name(word) in known for word in words.program):
        return
    program = Program.parse(words.program, module=words.module, launcher=words.launcher)
    first = program.own_arguments
    sources = _sources(program)
    if first is None or not sources:
        return
    for at in range(first, len(program.words)):
        option = _name(program.words[at])
        if option in known and not any(_is_named(option, text) for text in sources):
            yield _warning(command, words, at, option)


def _name(word: str) -> str:
    return word.partition("=")[0] if word.startswith("--") else ""


def _sources(program: Program) -> list[str]:
    """The texts of the entry and of what it reaches; empty where the entry cannot be read."""
    if program.entry is None:
        return []
    try:
        known = {str(program.entry): read_source(program.entry).text}
    except InputError:
        return []
    return [*known.values(), *read_reached(program, known).values()]


def _is_named(option: str, text: str) -> bool:
    """Whether a text has the option's name as a word, with either kind of dash: as it is in parsers of all kinds."""
    return re.search(rf"(?<![^\W_]){option[2:].replace('-', '[-_]')}(?![^\W_])", text) is not None


def _warning(command: Sequence[str], words: Split, at: int, option: str) -> str:
    valued = words.program[at] in TAKES_VALUE and at + 1 < len(words.program)
    moved = words.program[at : at + 1 + valued]
    rest = [*words.program[:at], *words.program[at + len(moved) :]]
    start = ["-m"] if words.module else ["--"] if words.launcher else []
    meant = shlex.join(["diagnose", *command, *words.options, *moved, *start, *rest])
    return (
        f"{option} stands after the script, so the script gets it, and no file of the program names it; to give it to "
        f"diagnose: `{meant}`"
    )
