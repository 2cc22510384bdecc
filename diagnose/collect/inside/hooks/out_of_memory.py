"""Whether the program ended because memory ran out, and at which of its lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sites import Sites

DIED = "out of memory"
"""The kind of site that an allocation which ended the program leaves."""

_LONGEST = 300
"""Characters of an exception's first line that are repeated."""
_LACK = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
_WANTED = re.compile(r"allocate (\d+(?:\.\d+)?) ?([KMGT]i?B|bytes)", re.IGNORECASE)
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def ended_for_want_of_memory() -> bool:
    """Return whether running out of memory ended the program. Call it at the interpreter's exit."""
    return unhandled_lack() is not None


def unhandled_lack() -> BaseException | None:
    """The exception that ends the program, where it says that memory ran out."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    named = type(error).__name__ in ("OutOfMemoryError", "MemoryError")
    return error if named or (isinstance(error, RuntimeError) and _LACK.search(str(error))) else None


def unhandled(sites: Sites) -> str | None:
    """`ValueError: broken data (train.py:41)`: the exception that ends the program; None where none does."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    words = str(error).strip().partition("\n")[0][:_LONGEST]
    frame = _innermost_owned(sites, error.__traceback__)
    where = f" ({Path(frame[0]).name}:{frame[1]})" if frame else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


def note_lack(sites: Sites) -> None:
    """Leave a record of the line at which the program ran out of memory, if that is how it ends."""
    error = unhandled_lack()
    if error is None:
        return
    frame = _innermost_owned(sites, error.__traceback__)
    found = _WANTED.search(str(error))
    wanted = round(float(found[1]) * _UNITS[found[2][0].lower()]) if found else None
    file, line, function = frame if frame else ("", 0, None)
    sites.add(DIED, file, line, function, {"error": type(error).__name__, "wanted_bytes": wanted})


def _innermost_owned(sites: Sites, trace: TracebackType | None) -> tuple[str, int, str] | None:
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if sites.ownership.owns(code.co_filename):
            found = (code.co_filename, trace.tb_lineno, code.co_qualname)
        trace = trace.tb_next
    return found
