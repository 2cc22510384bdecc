"""A unified diff as coloured lines."""

from __future__ import annotations

from rich.text import Text

from diagnose.report.style.styled_text import styled
from diagnose.tui.theme import FAINT, LINE

_ADDED, _REMOVED = "#17301f", "#3a1d1f"


_HANGING = "    "
"""The prefix of the rest of a long line on the next one."""


def diff_lines(diff: str, width: int) -> list[Text]:
    """A unified diff with added and removed lines set off across `width` columns; a longer line takes several."""
    return [styled(part, _style(line)) for line in diff.splitlines() for part in _parts(line, width)]


def _parts(line: str, width: int) -> list[str]:
    rest = max(width - len(_HANGING), 1)
    more = [_HANGING + line[at : at + rest] for at in range(width, len(line), rest)]
    return [part.ljust(width) for part in (line[:width], *more)]


def _style(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "diff ", "index ")):
        return "bold"
    if line.startswith("@@"):
        return f"{FAINT} on {LINE}"
    if line.startswith("+"):
        return f"#a7dcb9 on {_ADDED}"
    if line.startswith("-"):
        return f"#eea9a4 on {_REMOVED}"
    return FAINT
