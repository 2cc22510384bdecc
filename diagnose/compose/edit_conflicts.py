"""Whether an edit takes back what edits before it wrote: two cures of one place, of which one is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

_WORDS = re.compile(r"\w+")


def takes_back(before: Mapping[str, str], now: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether an edit from `now` to `after` removes what was written from `before` to `now`; texts by path.

    A line that was written may be written again with all of its words and more: arguments are added to one call.
    """
    return any(
        not words >= set(_WORDS.findall(line))
        for path, text in after.items()
        for line, words in _rewritten(before.get(path, ""), now.get(path, ""), text)
    )


def _rewritten(before: str, now: str, after: str) -> Iterator[tuple[str, set[str]]]:
    """Lines of `now` that are neither in `before` nor in `after`, each with the words that stand in its place."""
    lines, following = now.splitlines(), after.splitlines()
    written = set(_written(before.splitlines(), lines))
    for kind, begin, end, to, until in _opcodes(lines, following):
        if kind in ("replace", "delete"):
            words = {word for line in following[to:until] for word in _WORDS.findall(line)}
            yield from ((lines[at], words) for at in range(begin, end) if at in written)


def _written(original: list[str], lines: list[str]) -> Iterator[int]:
    """Which of the lines are new; one that was indented, as under a `with`, is not."""
    for kind, start, stop, begin, end in _opcodes(original, lines):
        if kind != "equal":
            there = {line.strip() for line in original[start:stop]}
            yield from (at for at in range(begin, end) if lines[at].strip() not in there)


def _opcodes(one: list[str], other: list[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
