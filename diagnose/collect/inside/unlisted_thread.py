"""A thread that the program does not find among its own.

A program may wait for all threads that `threading.enumerate` lists, or count them: the watcher's never end before the
program does. So they are started below `threading`, which also keeps the program's `threading.settrace` and
`threading.setprofile` out of them. What runs in one must not ask for `threading.current_thread`, which would list it.
"""

from __future__ import annotations

import _thread
import os

from .guard import contained

TYPE_CHECKING = False  # see the package's docstring
if TYPE_CHECKING:
    from collections.abc import Callable


class UnlistedThread:
    """Calls `run`; what that raises is noted for facts.json. Like a daemon, it holds up no exit."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = contained(run)
        self._running = _thread.allocate_lock()
        self._process = 0
        self.ident: int | None = None

    def start(self) -> None:
        """Begin. Raises RuntimeError where the system gives no further thread."""
        self._running.acquire()
        self._process = os.getpid()
        try:
            self.ident = _thread.start_new_thread(self._call, ())
        except BaseException:
            self._running.release()
            raise

    def is_alive(self) -> bool:
        """Whether the thread runs in this process; a forked child does not have it."""
        return self._running.locked() and self._process == os.getpid()

    def join(self, timeout: float) -> None:
        """Wait for its end, so many seconds at most; not at all where it is the one that asks."""
        if self.is_alive() and self.ident != _thread.get_ident() and self._running.acquire(timeout=timeout):
            self._running.release()

    def _call(self) -> None:
        try:
            self._run()
        finally:
            self._running.release()
