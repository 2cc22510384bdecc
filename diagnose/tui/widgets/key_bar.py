"""The bottom line: the keys that do something where the focus is."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Footer

_ALWAYS = ("leave", "help")
"""Actions of the keys that come first: a narrow terminal cuts the last ones, and `?` tells of those."""


class KeyBar(Footer):
    """The keys, with those that leave the screen and explain it before all others."""

    def compose(self) -> ComposeResult:
        yield from sorted(super().compose(), key=lambda key: getattr(key, "action", "") not in _ALWAYS)
