"""Limits on the memory that a file can make a reader allocate.

A user who knows that a file is honest lifts the limits for the time of reading it:

    with without_limits():
        traces = open_traces(paths)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_WITHOUT_LIMIT = 1 << 62
_are_lifted = False


def at_most(size_bytes: int) -> int:
    """The limit as it is now: `size_bytes`, unless limits are lifted."""
    return _WITHOUT_LIMIT if _are_lifted else size_bytes


@contextmanager
def without_limits() -> Iterator[None]:
    """Read files of any size, however much they swell. Of this process: others read with their limits."""
    global _are_lifted  # a setting of the process: readers are given a path and nothing else
    before, _are_lifted = _are_lifted, True
    try:
        yield
    finally:
        _are_lifted = before
