"""The bottom line: the keys that do something where the focus is."""

from __future__ import annotations

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer

_ALWAYS = ("leave", "help", "show(0)")
"""Actions of the keys that come first: a narrow terminal has no room for the last ones, and `?` tells of those."""
_PALETTE = "-command-palette"
_ROOM_FOR_PALETTE = 100  # columns; as the style sheet


class KeyBar(Footer):
    """The keys, with those that leave the screen, explain it and turn its pages before all others; none is cut."""

    def compose(self) -> ComposeResult:
        keys = sorted(super().compose(), key=_rank)
        room = self.content_size.width
        for key in keys:
            if key.has_class(_PALETTE):
                taken = _width(key) if self.app.size.width >= _ROOM_FOR_PALETTE else 0
            else:
                taken = _width(key)
            if taken <= room:
                room -= taken
                yield key

    def on_resize(self) -> None:
        """Another width has room for other keys."""
        self.call_after_refresh(self.recompose)


def _rank(key: Widget) -> int:
    """Return the rank of a key: the command palette, at the right, has its room before those that may be left out."""
    action = getattr(key, "action", "")
    return _ALWAYS.index(action) if action in _ALWAYS else len(_ALWAYS) + (not key.has_class(_PALETTE))


def _width(key: Widget) -> int:
    """Return the columns of a key: its name between two blanks, what it does, and one blank."""
    return cell_len(getattr(key, "key_display", "")) + cell_len(getattr(key, "description", "")) + 3
