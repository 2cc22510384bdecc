"""Keeps the signal of a file that would exceed its limit (`ulimit -f`) from a program that did not write that file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unsignalled() -> Iterator[None]:
    """Files that this thread writes meanwhile fail with an OSError at the limit, and nothing else happens."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    try:
        yield
    finally:
        if signal.SIGXFSZ not in before:
            while signal.sigtimedwait({signal.SIGXFSZ}, 0) is not None:
                """The kernel keeps what was blocked for later: it is ours."""
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
