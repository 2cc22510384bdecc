"""Building lines of styled text, piece by piece."""

from __future__ import annotations

from rich.text import Text

from diagnose.report.vocabulary import MUTED


def styled(words: str, style: str = "") -> Text:
    """A line that begins with `words`. Only they have the style: what is appended to it has its own."""
    return Text(no_wrap=True, end="").append(words, style)


def heading(words: str, beside: str, width: int) -> Text:
    """The first line of a section; what stands beside it is left out where `width` has no room for it."""
    line = styled(words, "bold")
    return line.append(f"   {beside}", MUTED) if beside and len(words) + len(beside) + 3 <= width else line
