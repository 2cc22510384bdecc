"""Reports from time to time how long no step has ended, so that a wait shows a sign of life."""

from __future__ import annotations

from diagnose.units import format_seconds

FIRST_S = 15.0
"""Of silence, before it is told; then whenever it has become twice as long."""


class StallNotice:
    """Asked again and again, it answers when a wait has become worth a word. Times are seconds of any one clock."""

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._tell_after_s = FIRST_S
        self._stepped = False

    def broken(self, now_s: float) -> None:
        """A step has ended."""
        self._stepped = True
        self._since_s, self._tell_after_s = now_s, FIRST_S

    def words(self, now_s: float) -> str | None:
        """`30 s so far`; None where there is nothing new to say."""
        silent_s = now_s - self._since_s
        if silent_s < self._tell_after_s:
            return None
        while self._tell_after_s <= silent_s:
            self._tell_after_s *= 2
        return f"{format_seconds(silent_s)} {'since the last step' if self._stepped else 'so far'}"
