"""A limit on how long the program's files may be looked at for one question.

What looks through files asks now and then whether time is up: no thread or signal is needed, and nothing is left half
made but the answer.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_Clock = Callable[[], int]
_BETWEEN = 64
"""Looks at nodes of a file from one reading of the clock to the next: a reading takes longer than most looks."""


class _Limit:
    """A time that must not be passed, and what is left of the looks before the clock is read again."""

    def __init__(self, end_ns: int, clock: _Clock) -> None:
        self.end_ns, self.clock = end_ns, clock
        self.looks_left = 0


_LIMIT: ContextVar[_Limit | None] = ContextVar("_LIMIT", default=None)


class TookTooLong(Exception):
    """The time that was given for a question is over."""


@contextmanager
def time_limit(limit_ns: int | None, clock: _Clock = time.monotonic_ns) -> Iterator[None]:
    """Raise TookTooLong from whatever looks at files within, once the limit has passed; None: no limit.

    Garbage of circles is not looked for meanwhile: parsed files are millions of objects that stay, and to go through
    them again and again takes a third of the time that it takes to make them.
    """
    token = _LIMIT.set(None if limit_ns is None else _Limit(clock() + limit_ns, clock))
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _LIMIT.reset(token)
        if collects:
            gc.enable()


def check_time() -> None:
    """Raise TookTooLong where the time is over."""
    limit = _LIMIT.get()
    if limit is not None:
        limit.looks_left = _BETWEEN
        if limit.clock() >= limit.end_ns:
            raise TookTooLong


def check_time_now_and_then() -> None:
    """Raise TookTooLong where the time is over, as read at few of the calls only: for what takes microseconds."""
    limit = _LIMIT.get()
    if limit is not None:
        limit.looks_left -= 1
        if limit.looks_left < 0:
            check_time()
