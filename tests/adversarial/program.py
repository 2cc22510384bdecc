"""A training program of the suite, with what may be edited in it and what must be left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import dedent, indent

_SLOT = re.compile(r"^([ ]*)<(\w+)>$", re.MULTILINE)
_WORD = re.compile(r"<(\w+)>")


@dataclass(frozen=True)
class Program:
    """A program that runs on the CPU in about a second and prints figures."""

    name: str
    family: str
    text: str
    """What `train.py` holds."""
    edited: frozenset[str] = frozenset()
    """Fixers that are expected to edit it."""
    left_alone: Mapping[str, str] = field(default_factory=dict)
    """Fixers that must not edit it, each with the reason. A declared change of the training is allowed."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Its other files: name → text."""
    ranks: int = 1

    @property
    def files(self) -> dict[str, str]:
        """All files of the program by name."""
        return {"train.py": self.text, **self.more}


def fill(template: str, **parts: str) -> str:
    """Put parts into the slots of a template.

    A slot on a line of its own takes lines, each indented as the slot is; an empty part takes the line away. Parts may
    hold slots themselves.
    """
    text = dedent(template).lstrip("\n")
    for _ in range(3):
        text = _SLOT.sub(lambda found: _block(parts, found), text)
        text = _WORD.sub(lambda found: parts.get(found[1], found[0]), text)
    return re.sub(r"^[ ]*\x00\n", "", text, flags=re.MULTILINE)


def _block(parts: Mapping[str, str], found: re.Match[str]) -> str:
    if found[2] not in parts:
        return found[0]
    part = dedent(parts[found[2]]).strip("\n")
    return indent(part, found[1]) if part else "\x00"


def unique(programs: Iterable[Program]) -> Iterator[Program]:
    """The programs, each under a name of its own. Raises ValueError where two have one name."""
    seen: set[str] = set()
    for program in programs:
        if program.name in seen:
            raise ValueError(f"two programs are called {program.name}")
        seen.add(program.name)
        yield program
