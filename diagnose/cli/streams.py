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
