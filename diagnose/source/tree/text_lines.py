"""The text of a file: its words, and its lines as Python numbers them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property, lru_cache

_WORD = re.compile(r"\w+")
_LINE_END = re.compile(r"\r\n|\r|\n")
_USUAL_LINE, _LONGEST_LINE = 100, 120


def lines_in(text: str) -> list[str]:
    """Line n is at n - 1: a form feed, or another of the characters at which `str.splitlines` cuts, ends none."""
    lines = _LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


@lru_cache(maxsize=32768)  # some hundred files, and what all fixers look for in them
def matches(pattern: re.Pattern[str], text: str) -> bool:
    """Whether a text has what a pattern describes: found once, as each fixer looks for the same in each setting."""
    return pattern.search(text) is not None


def any_matches(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    """Whether one of a program's texts has what a pattern describes."""
    return any(matches(pattern, text) for text in texts)


class Text:
    """The text of one file."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._mentioned: dict[str, bool] = {}

    def mentions(self, *words: str) -> bool:
        """Whether the text holds one of the words, or none is given: cheap, where the tree is not."""
        return not words or any(map(self._mentions, words))

    def _mentions(self, word: str) -> bool:
        """Each word is looked for once: the pieces of a file are many, and all of them ask for it."""
        if word not in self._mentioned:
            self._mentioned[word] = word in self.text
        return self._mentioned[word]

    @cached_property
    def words(self) -> frozenset[str]:
        """All words of the text, those of comments and strings too."""
        return frozenset(_WORD.findall(self.text))

    def holds(self, word: str) -> bool:
        """Whether the text has a word, or words with other characters between them, and not as a part of another."""
        parts = _WORD.findall(word)
        if not self.words.issuperset(parts):
            return False
        return parts == [word] or matches(re.compile(rf"\b{re.escape(word)}\b"), self.text)

    @cached_property
    def line_limit(self) -> int:
        """How long a new line may be: as the file's longest, between the usual limits of formatters."""
        return max(_USUAL_LINE, min(_LONGEST_LINE, max(map(len, self.text.splitlines()), default=0)))

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def text_lines(self) -> list[str]:
        """The lines of the text, without their ends."""
        return lines_in(self.text)

    def _line(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset) + (offset > len(self.text))

    def line_text(self, line: int) -> str:
        """A line, from 1, without its end; empty beyond the file."""
        if not 1 <= line <= len(self._line_starts):
            return ""
        start = self._line_starts[line - 1]
        return self.text[start : self.line_end(start)]

    def line_start(self, offset: int) -> int:
        """The offset at which the line of `offset` begins."""
        return max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1

    def line_end(self, offset: int) -> int:
        """The offset of the line end at or after `offset`."""
        match = _LINE_END.search(self.text, offset)
        return match.start() if match else len(self.text)

    def after_line(self, offset: int) -> int:
        """The offset at which the line after that of `offset` begins."""
        match = _LINE_END.search(self.text, offset)
        return match.end() if match else len(self.text)
