"""The command line that starts a program, as a text that edits reach like a file: one word a line, quoted.

A program that is steered by its command line is best changed there: `--workers 8` in the place of `--workers 4`, or
`--amp` at the end.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from diagnose.model import Scalar

COMMAND_LINE = "<command line>"
"""The path by which edits name it, beside those of files."""


def split_command(text: str) -> tuple[str, ...]:
    """The words of a command line's text."""
    return tuple(shlex.split(text))


@dataclass(frozen=True, slots=True)
class Word:
    """A stretch of the command line's text that gives a value."""

    span: tuple[int, int]
    text: str
    """The value as it is written; empty for an option that takes none."""
    before: str = ""
    """What stands before the value in the same word, as `--workers=`."""


@dataclass(frozen=True)
class CommandLine(Sequence[str]):
    """The words of a program's start; those from `own` on are its own arguments.

    Edits are made to `text`. Where it is not known which words are the program's, there is no `CommandLine`.
    """

    words: tuple[str, ...]
    own: int

    @property
    def text(self) -> str:
        """One word a line."""
        return "".join(f"{shlex.quote(word)}\n" for word in self.words)

    @property
    def steers(self) -> bool:
        """Whether the program is steered by it: whether it was given any argument."""
        return len(self.words) > self.own

    @property
    def takes_more(self) -> bool:
        """Whether an option at its end would be read as one: after `--`, everything is an operand."""
        return "--" not in self.words[self.own :]

    @property
    def end(self) -> tuple[int, int]:
        """Where an option more is written."""
        return len(self.text), len(self.text)

    def given(self, options: Collection[str], *, takes_value: bool) -> Word | None:
        """Return where the last of the words that give one of these options gives its value; None where none does.

        `takes_value`: the next word belongs to the option, unless `=` stands in it.
        """
        spans = list(self._spans())
        for at in range(len(self.words) - 1, self.own - 1, -1):
            name, equals, value = self.words[at].partition("=")
            if name not in options:
                continue
            if equals:
                return Word(spans[at], value, f"{name}=")
            if not takes_value:
                start, end = spans[at]
                return Word((start, end + 1), "")
            return Word(spans[at + 1], self.words[at + 1]) if at + 1 < len(self.words) else None
        return None

    def keyed(self, keys: Sequence[str]) -> Word | None:
        """Return where `a.b.c=value` is given, as Hydra and OmegaConf read it; `keys` are the end of its path.

        Programs name the part of a configuration that they hand on as they like (`self.config.amp` for `trainer.amp`):
        where no path ends in all keys, the only one that ends in the last of them is meant.
        """
        return self._keyed(keys) or (self._keyed(keys[-1:]) if self._ends_once(keys[-1]) else None)

    def _ends_once(self, key: str) -> bool:
        paths = {word.partition("=")[0].lstrip("+") for word in self.words[self.own :] if "=" in word}
        return sum(path.rpartition(".")[2] == key for path in paths) == 1

    def _keyed(self, keys: Sequence[str]) -> Word | None:
        spans = list(self._spans())
        for at in range(len(self.words) - 1, self.own - 1, -1):
            key, equals, value = self.words[at].partition("=")
            path = tuple(key.lstrip("+").split("."))
            short = min(len(path), len(keys))
            if equals and not key.startswith("-") and path[-short:] == tuple(keys)[-short:]:
                return Word(spans[at], value, f"{key}=")
        return None

    def _spans(self) -> Iterator[tuple[int, int]]:
        start = 0
        for word in self.words:
            end = start + len(shlex.quote(word))
            yield start, end
            start = end + 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        """A word, or some of them."""
        return self.words[at]

    def __len__(self) -> int:
        """Return how many words there are."""
        return len(self.words)


def value_of_word(text: str) -> Scalar:
    """Return the value that an option parser makes of a word."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if text == "None":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
