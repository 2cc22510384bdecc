"""Which line of the old commit a line of the new one was, from the texts of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from diagnose.regressions.costs import Line


@dataclass(frozen=True)
class LineMap:
    """The lines of the changed files; a file without changes has the lines that it had."""

    old: Mapping[Line, int]
    """Of a changed file, each line that stayed: its number before."""
    changed: tuple[str, ...] = ()
    first_change: Line = ("", 0)

    def before(self, line: Line) -> Line:
        """Return the line of the old commit; line 0 for a new one."""
        return line if line[0] not in self.changed else (line[0], self.old.get(line, 0))

    def is_changed(self, line: Line) -> bool:
        """Whether a line is new, or has another text than before."""
        return line[0] in self.changed and line not in self.old


def line_map(texts: Mapping[str, tuple[str, str]]) -> LineMap:
    """Return the map of changed files, each with its text before and after; a missing file is an empty text."""
    old: dict[Line, int] = {}
    first: Line = ("", 0)
    for file, (before, after) in texts.items():
        matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
        for tag, at, end, now, _ in matcher.get_opcodes():
            if tag == "equal":
                old |= {(file, now + 1 + step): at + 1 + step for step in range(end - at)}
            elif not first[0] and file.endswith(".py"):
                first = (file, now + 1)
    return LineMap(old, tuple(texts), first)
