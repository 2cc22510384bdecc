"""Events on their way to the screen: folded where they arrive, announced where they are shown.

Work runs in its own thread and hands over events at any rate. The feed folds each into a `State` at once and tells the
screen only that there is news; a screen that is behind skips to the newest state and loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message

from diagnose.session import AnyEvent, State


class StateChanged(Message):
    """There is a newer state in the feed."""

    def can_replace(self, message: Message) -> bool:
        """One announcement is as good as many."""
        return isinstance(message, StateChanged)


class Feed:
    """The newest state. `accept` may be called from any thread."""

    def __init__(self, state: State | None = None, last_ns: int | None = None) -> None:
        self._lock = threading.Lock()
        self._state = state or State()
        self._last_ns = last_ns
        self._announce: Callable[[], object] | None = None

    def announce(self, call: Callable[[], object]) -> None:
        """Have `call` called, in the thread that brings it, after every event."""
        self._announce = call

    def accept(self, event: AnyEvent) -> None:
        """Fold one event."""
        with self._lock:
            self._state = self._state.after(event)
            self._last_ns = event.at_ns
        if self._announce is not None:
            self._announce()

    @property
    def state(self) -> State:
        """The state after the newest event."""
        with self._lock:
            return self._state

    @property
    def last_ns(self) -> int | None:
        """The time at which the newest event happened; None before the first."""
        with self._lock:
            return self._last_ns
