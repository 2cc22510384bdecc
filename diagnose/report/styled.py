"""Building lines of styled text, piece by piece."""

from __future__ import annotations

from rich.text import Text


def styled(words: str, style: str = "") -> Text:
    """A line that begins with `words`. Only they have the style: what is appended to it has its own."""
    return Text(no_wrap=True, end="").append(words, style)
