"""Breaking prose into lines without parting a number from its unit."""

from __future__ import annotations

import re
import textwrap
import unicodedata

NARROWEST = 20
_NO_BREAK = "\u00a0"
_SECOND_HALF = "\u2060"
"""Stands behind a letter that takes two columns while lines are counted out; prose has none of its own."""
_UNIT = r"(?<=\d) (?=(?:[nµm]?s|min|h|[KMGT]iB|B|[kMGTPE]?FLOP|%)(?:\W|$))"
_BETWEEN = re.compile(rf"{_UNIT}|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b)")


def wrap(words: str, width: int) -> list[str]:
    """Lines of at most `width` columns (never asked for fewer than 20); at least one, which may be empty."""
    kept = _BETWEEN.sub(_NO_BREAK, words if words.isascii() else _in_columns(words))
    lines = textwrap.wrap(kept, max(width, NARROWEST), break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ").replace(_SECOND_HALF, "") for line in lines] or [""]


def _in_columns(words: str) -> str:
    """The words with one character for each column that they take on a terminal."""
    return "".join(f"{one}{_SECOND_HALF}" if unicodedata.east_asian_width(one) in "WF" else one for one in words)
