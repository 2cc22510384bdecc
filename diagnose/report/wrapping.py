"""Breaking prose into lines without parting a number from its unit."""

from __future__ import annotations

import re
import textwrap

_NARROWEST = 20
_NO_BREAK = "\u00a0"
_BETWEEN = re.compile(r"(?<=\d) (?=(?:[nµm]?s|min|[KMGT]iB|B|[kMGTPE]?FLOP|%)(?:\W|$))")


def wrap(words: str, width: int) -> list[str]:
    """Lines of at most `width` columns (never asked for fewer than 20); at least one, which may be empty."""
    kept = _BETWEEN.sub(_NO_BREAK, words)
    lines = textwrap.wrap(kept, max(width, _NARROWEST), break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines] or [""]
