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
_END: ContextVar[tuple[int, _Clock] | None] = ContextVar("_END", default=None)


class TookTooLong(Exception):
    """The time that was given for a question is over."""


@contextmanager
def time_limit(limit_ns: int | None, clock: _Clock = time.monotonic_ns) -> Iterator[None]:
    """Raise TookTooLong from whatever looks at files within, once the limit has passed; None: no limit.

    Garbage of circles is not looked for meanwhile: parsed files are millions of objects that stay, and to go through
    them again and again takes a third of the time that it takes to make them.
    """
    token = _END.set(None if limit_ns is None else (clock() + limit_ns, clock))
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        _END.reset(token)
        if collects:
            gc.enable()


def check_time() -> None:
    """Raise TookTooLong where the time is over."""
    end = _END.get()
    if end is not None and end[1]() >= end[0]:
        raise TookTooLong
