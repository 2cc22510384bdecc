"""Pseudo-terminals for programs that run where the user does not type.

Some programs ask their standard input how wide a line is (`stty size`), and end where it is no terminal. Such a
terminal has the size of the user's, and reading from it finds the end of the input at once.
"""

from __future__ import annotations

import codecs
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def output_terminal(on_output: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yield the streams of a program, for `Popen`: a terminal whose output goes to `on_output`, and no input."""
    with _pair() as (master, slave):
        reader = threading.Thread(target=_read, args=(master, on_output), name="program output", daemon=True)
        reader.start()
        try:
            yield {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
        finally:
            os.close(slave)
            reader.join(timeout=2)


@contextmanager
def input_terminal() -> Iterator[int]:
    """Yield a standard input without input, for `Popen`: a terminal if ours is one."""
    if not _is_terminal():
        yield subprocess.DEVNULL
        return
    with _pair() as (_, slave):
        try:
            yield slave
        finally:
            os.close(slave)


def _is_terminal() -> bool:
    try:
        return sys.__stdin__ is not None and sys.__stdin__.isatty()
    except ValueError:  # it is closed
        return False


@contextmanager
def _pair() -> Iterator[tuple[int, int]]:
    """Yield both ends of a terminal; whoever takes the program's end closes it."""
    master, slave = pty.openpty()
    try:
        if _is_terminal() and sys.__stdin__ is not None:
            with suppress(OSError, termios.error):
                termios.tcsetwinsize(slave, termios.tcgetwinsize(sys.__stdin__.fileno()))
        settings = termios.tcgetattr(slave)
        # Without lines, and without waiting for a first byte: each read returns what is there, which is nothing.
        settings[3] &= ~termios.ICANON
        settings[6][termios.VMIN] = settings[6][termios.VTIME] = 0
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        yield master, slave
    finally:
        with suppress(OSError):
            os.close(master)


def _read(master: int, on_output: Callable[[str], None]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the last writer has closed its end
            return
        if not data:
            return
        on_output(decoder.decode(data).replace("\r\n", "\n"))
