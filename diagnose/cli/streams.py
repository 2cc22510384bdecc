"""The only writers of the two streams, `result` for stdout and `talk` for stderr, and whether a screen can be drawn."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def result(text: str) -> None:
    """Print a result on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def has_screen() -> bool:
    """Whether a screen can be drawn: on a terminal, or in the browser to which textual-serve shows the command."""
    return bool(os.environ.get("TEXTUAL_DRIVER")) or (sys.stdin.isatty() and sys.stdout.isatty())


def talk(text: str) -> None:
    """Say something about the work on stderr, or to nobody where its reader or its terminal went away, or its disk is
    full: the work goes on, and a program that trains must not end of a word about it.
    """
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError as error:
        if error.errno != errno.EIO:
            _say_to_nobody("stderr")


def abandon(stream: TextIO) -> None:
    """Drop what is left in a stream's buffer: at exit, flushing it would fail a second time."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is no file, as where something catches what is printed
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def replace_closed_streams() -> None:
    """Print into nothing where a stream was closed before the start (`2>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            _say_to_nobody(name)


def _say_to_nobody(name: str) -> None:
    """Print into nothing from now on; what is started has the stream as it was, broken or closed."""
    lowest = os.open(os.devnull, os.O_WRONLY)
    setattr(sys, name, os.fdopen(fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, 3), "w"))
    os.close(lowest)


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
    """Send the standard output of a program that inherits our streams to stderr, so that ours stays JSON."""
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
