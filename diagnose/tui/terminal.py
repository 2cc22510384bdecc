"""A terminal that may go away under the screen: a window that is closed, a connection that drops.

Textual writes from a thread of its own. A write to a terminal that is gone fails, the thread ends, its queue fills, and
the screen waits for room in it for ever; so a failed write is taken for one that nobody has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from textual.drivers.linux_driver import LinuxDriver

_STANDARD = (0, 1, 2)


class Unheard:
    """A text file whose writes may fail."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write, if anybody is there."""
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if anybody is there."""
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class TerminalDriver(LinuxDriver):
    """Textual's driver, on a terminal that may go away."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file = cast("Any", Unheard(cast("IO[str]", self._file)))


@contextlib.contextmanager
def forgotten_when_lost() -> Iterator[None]:
    """Afterwards, a standard stream whose terminal has gone leads nowhere: what is said to it must not fail."""
    terminals = [number for number in _STANDARD if os.isatty(number)]
    try:
        yield
    finally:
        lost = [number for number in terminals if not os.isatty(number)]
        if lost:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in lost:
                os.dup2(nowhere, number)
            os.close(nowhere)


def heed_requests(leave: Callable[[], None]) -> None:
    """Take a request to end, or a terminal that is gone, as the user leaving: nobody is there to be asked."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            asyncio.get_running_loop().add_signal_handler(number, leave)
