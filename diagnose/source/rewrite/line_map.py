"""Where a line of a file went when the file was edited."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.source.tree.text_lines import lines_in


@dataclass(frozen=True)
class LineMap:
    """The new number of each old line, by edited file."""

    files: Mapping[str, tuple[int, ...]]

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> LineMap:
        """The map from texts to edited texts; files that are in one of them only, or in both alike, are left out."""
        edited = {path: text for path, text in after.items() if path in before and before[path] != text}
        return cls({path: _lines(before[path], text) for path, text in edited.items()})

    def line(self, file: str, line: int) -> int:
        """The new number of a line, counted from 1; the same where nothing is known."""
        moved = self.files.get(file, ())
        return moved[line - 1] if 0 < line <= len(moved) else line


def _lines(before: str, after: str) -> tuple[int, ...]:
    old, new = lines_in(before), lines_in(after)
    found = [0] * len(old)
    for _, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        for at in range(old_start, old_end):
            # A line that was replaced is looked for at the same distance into what replaced it.
            found[at] = min(new_start + at - old_start, max(new_start, new_end - 1)) + 1
    return tuple(found)
