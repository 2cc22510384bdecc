"""Text in Markdown as what it says: paths, code and messages of others are no links, no HTML, no mentions of people."""

from __future__ import annotations

import re

_SPAN = re.compile(r"`([^`]+)`")
_MARKS = re.compile(r"[\\`*~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])|^[#>]")
"""What would be markup: a bracket only where a link goes on behind it, an underscore only at the end of a word."""
_REFERENCE = re.compile(r"(@(?=\w)|#(?=\d)|:(?=//)|www(?=\.)|GH(?=-\d))", re.IGNORECASE)
_FENCE = re.compile("`{3,}")
_RUNS = re.compile("`+")
_INVISIBLE = "\u200b"


def inline(words: str) -> str:
    """Text that stays on its line; what it has between backticks is code, and nothing else in it is markup."""
    parts = _SPAN.split(" ".join(words.split()))
    return "".join(code(part) if number % 2 else _plain(part) for number, part in enumerate(parts))


def code(text: str) -> str:
    """A span of code, whatever backticks the text has; in a table as well as outside of one."""
    shown = " ".join(text.split())
    fence = "`" * (1 + max(map(len, _RUNS.findall(shown)), default=0))
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}" if shown else ""


def fence_around(text: str) -> str:
    """A fence that no line of the text closes."""
    return "`" * (1 + max(map(len, _FENCE.findall(text)), default=2))


def _plain(text: str) -> str:
    """Escaped; an invisible space keeps the mention of a person or an issue, and a web address, from being a link."""
    escaped = _MARKS.sub(lambda mark: f"\\{mark[0]}", re.sub(r"&(?=#|\w)", "&amp;", text).replace("<", "&lt;"))
    return _REFERENCE.sub(f"\\1{_INVISIBLE}", escaped)
