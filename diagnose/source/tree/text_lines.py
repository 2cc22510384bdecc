"""The lines of a text as Python numbers them."""

from __future__ import annotations

import re

_END = re.compile(r"\r\n|\r|\n")


def lines_in(text: str) -> list[str]:
    """Line n is at n - 1: a form feed, or another of the characters at which `str.splitlines` cuts, ends none."""
    lines = _END.split(text)
    return lines if lines[-1] else lines[:-1]
