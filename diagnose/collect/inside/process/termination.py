"""Lets SIGTERM close what is open before it ends the process, where the program has no handler of its own.

Armed only while a window is open: at all other times the program's signal handling is exactly its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from ..guard import guarded


class Termination:
    """`close` is called on the main thread before the process dies of the signal as it would have anyway."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = guarded(close)
        self._armed = False
        self._process = 0

    def arm(self) -> None:
        """Stand in for the default action."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._armed, self._process = True, os.getpid()

    def disarm(self) -> None:
        """Put the default action back, unless the program has set its own meanwhile."""
        if self._armed and threading.current_thread() is threading.main_thread():
            self._armed = False
            if signal.getsignal(signal.SIGTERM) == self._terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._process:  # a child that was forked meanwhile has nothing open
            self._close()
        self._armed = False
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
