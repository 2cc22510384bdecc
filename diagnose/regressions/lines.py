"""Maps lines of the new commit to those of the old one, from the texts of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from diagnose.regressions.costs import Line

SIMILAR = 0.6
"""The ratio from which an edited line is taken for the one before: the cutoff of `difflib.get_close_matches`."""


@dataclass(frozen=True)
class LineMap:
    """The lines of the changed files; a file without changes has the lines that it had."""

    old: Mapping[Line, int]
    """The number before of each line of a changed file that stayed or was edited."""
    changed: tuple[str, ...] = ()
    edited: frozenset[Line] = frozenset()
    first_change: Line = ("", 0)

    def before(self, line: Line) -> Line:
        """Return the line of the old commit; line 0 for a new one."""
        return line if line[0] not in self.changed else (line[0], self.old.get(line, 0))

    def is_changed(self, line: Line) -> bool:
        """Whether a line is new, or has another text than before."""
        return line in self.edited or (line[0] in self.changed and line not in self.old)


def line_map(texts: Mapping[str, tuple[str, str]]) -> LineMap:
    """Return the map of changed files, each with its text before and after; a missing file is an empty text."""
    old: dict[Line, int] = {}
    edited: set[Line] = set()
    first: Line = ("", 0)
    for file, (before, after) in texts.items():
        then, now = before.splitlines(), after.splitlines()
        for tag, a, a_end, b, b_end in SequenceMatcher(None, then, now, autojunk=False).get_opcodes():
            if tag == "equal":
                old |= {(file, b + 1 + step): a + 1 + step for step in range(a_end - a)}
                continue
            if not first[0] and file.endswith(".py"):
                first = (file, b + 1)
            for at, to in _edited(then[a:a_end], now[b:b_end]):
                old[file, b + 1 + to] = a + 1 + at
                edited.add((file, b + 1 + to))
    return LineMap(old, tuple(texts), frozenset(edited), first)


def _edited(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield which of the lines that were taken out came back with another text, in their order."""
    start = 0
    for to, line in enumerate(after):
        for at in range(start, len(before)):
            if SequenceMatcher(None, before[at].strip(), line.strip(), autojunk=False).ratio() > SIMILAR:
                yield at, to
                start = at + 1
                break
