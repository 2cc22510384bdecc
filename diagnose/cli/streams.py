"""The only writers of the two streams: `result` for stdout, `talk` for stderr."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def result(text: str) -> None:
    """Print a result on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def talk(text: str) -> None:
    """Say something about the work on stderr; when its terminal went away, to nobody: the work is still to be ended."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def terminal_is_lost() -> bool:
    """Whether a terminal that a standard stream leads to went away: no other EIO is its fault."""
    return any(_is_lost(number) for number in (0, 1, 2))


def _is_lost(number: int) -> bool:
    try:
        os.get_terminal_size(number)
    except OSError as error:
        return error.errno == errno.EIO
    return False


@contextmanager
def standard_output_to_stderr(wanted: bool) -> Iterator[None]:
    """While a program runs that inherits our streams, its standard output goes to stderr, so ours stays JSON."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
