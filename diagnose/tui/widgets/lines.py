"""A scrolling view of ready-made lines: code, diffs, output, details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip


class Lines(ScrollView, can_focus=True):
    """Lines of text, drawn only where they are seen, so that length costs nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("h", "scroll_left", show=False),
        Binding("l", "scroll_right", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G,shift+g", "scroll_end", show=False),
        Binding("space", "page_down", show=False),
    ]

    def __init__(self, id: str | None = None, follow: bool = False) -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self._follow = follow

    def show(self, lines: Sequence[Text]) -> None:
        """Replace the lines. A view that follows and stands at its end stays at its end."""
        at_end = self.scroll_offset.y >= self.max_scroll_y
        self._lines = tuple(lines)
        self.virtual_size = Size(max((line.cell_len for line in self._lines), default=0), len(self._lines))
        self.refresh()
        if self._follow and at_end:
            self.scroll_end(animate=False)

    def render_line(self, y: int) -> Strip:
        """The strip for row `y` of what is seen."""
        across, down = self.scroll_offset
        width, number = self.size.width, y + down
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        segments = [Segment(text, style) for text, style, _ in self._lines[number].render(self.app.console)]
        return Strip(segments).crop_extend(across, across + width, None).apply_style(self.rich_style)
