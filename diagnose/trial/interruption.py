"""Ends analysis that would outlast a deadline: replaying and reading traces, which waits for nothing.

What waits for processes looks at the clock by itself. What computes does not, and may take minutes in a large program:
it gets an exception from outside. That must only happen where nothing is held that has to be given back.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from diagnose.trial.schedule import Deadline
from diagnose.units import NS_PER_S


class TimeIsUp(BaseException):
    """The deadline passed. No `Exception`: a fixer that is the user's own must not take it for its own error."""


@contextmanager
def interrupted_at(deadline: Deadline) -> Iterator[None]:
    """Within it, TimeIsUp is raised in this thread once the deadline has passed; never after it.

    A deadline on another clock than the machine's, which nobody can wait for, interrupts nothing.
    """
    left_ns = deadline.left_ns
    if left_ns is None or deadline.clock is not time.monotonic_ns:
        yield
        return
    if left_ns == 0:
        raise TimeIsUp
    thread = ctypes.c_ulong(threading.get_ident())
    timer = threading.Timer(left_ns / NS_PER_S, _interrupt, (thread,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # one that has not arrived


def _interrupt(thread: ctypes.c_ulong) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeIsUp))
