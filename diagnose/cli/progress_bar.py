"""How far the reading of many files has come: one line on a terminal's stderr, wiped when all are read."""

from __future__ import annotations

import shutil
import sys

_CELLS = 24


def show_progress(done: int, total: int) -> None:
    """Draw the line again; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    line = "" if done >= total else bar(done, total, shutil.get_terminal_size().columns - 1)
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def bar(done: int, total: int, width: int) -> str:
    """`reading ━━━━━━──────  3 of 8 files`, in at most `width` cells."""
    cells = _CELLS * done // total
    return f"reading {'━' * cells}{'─' * (_CELLS - cells)}  {done} of {total} files"[:width]
