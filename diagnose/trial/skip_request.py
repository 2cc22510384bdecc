"""Lets the user skip the trial of one fix and go on with the next."""

from __future__ import annotations

import threading


class SkipRequest:
    """A request to end the trial under way, from any thread; it holds for that trial alone."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """End the trial under way after its current pair of blocks."""
        self._asked.set()

    def begin(self) -> None:
        """A trial begins: what was asked before was about another one."""
        self._asked.clear()

    @property
    def asked(self) -> bool:
        """Whether the trial that began last is to end."""
        return self._asked.is_set()
