"""A unified diff as coloured lines."""

from __future__ import annotations

from rich.text import Text

from diagnose.report.style.styled_text import styled
from diagnose.tui.theme import FAINT, LINE

_ADDED, _REMOVED = "#17301f", "#3a1d1f"


def diff_lines(diff: str, width: int) -> list[Text]:
    """A unified diff with added and removed lines set off across `width` columns."""
    return [_line(line, width) for line in diff.splitlines()]


def _line(line: str, width: int) -> Text:
    filled = line + " " * (width - len(line))
    if line.startswith(("--- ", "+++ ", "diff ", "index ")):
        return styled(line, "bold")
    if line.startswith("@@"):
        return styled(filled, f"{FAINT} on {LINE}")
    if line.startswith("+"):
        return styled(filled, f"#a7dcb9 on {_ADDED}")
    if line.startswith("-"):
        return styled(filled, f"#eea9a4 on {_REMOVED}")
    return styled(line, FAINT)
