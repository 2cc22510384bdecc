"""A scrolling view of ready-made lines: code, diffs, output, details."""

from __future__ import annotations

import re
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
        Binding("n", "to_match(1)", show=False),
        Binding("N,shift+n", "to_match(-1)", show=False),
    ]

    def __init__(self, id: str | None = None, follow: bool = False) -> None:
        super().__init__(id=id)
        self._lines: tuple[Text, ...] = ()
        self._follow = follow
        self._marked = ""
        self._matches: list[int] = []
        self.match = 0
        """The marked line that was gone to last."""

    def show(self, lines: Sequence[Text]) -> None:
        """Replace the lines. A view that follows and stands at its end stays at its end."""
        at_end = self.scroll_offset.y >= self.max_scroll_y
        self._lines = tuple(lines)
        self.virtual_size = Size(max((line.cell_len for line in self._lines), default=0), len(self._lines))
        self._find()
        self.refresh()
        if self._follow and at_end:
            self.scroll_end(animate=False)

    def mark(self, words: str) -> str:
        """Mark the lines that hold `words`, whatever their case, and go to the last; says how many there are."""
        self._marked = words.lower()
        self._find()
        if self._matches:
            self._go(self._matches[-1])
        self.refresh()
        return f"{len(self._matches)} line{'' if len(self._matches) == 1 else 's'}" if words else ""

    def action_to_match(self, by: int) -> None:
        """The next line that is marked, or the one before; behind the last comes the first."""
        if self._matches:
            after = [line for line in self._matches if line > self.match]
            before = [line for line in self._matches if line < self.match]
            self._go((after or self._matches)[0] if by > 0 else (before or self._matches)[-1])

    def _find(self) -> None:
        lines = enumerate(self._lines) if self._marked else ()
        self._matches = [number for number, line in lines if self._marked in line.plain.lower()]

    def _go(self, number: int) -> None:
        self.match = number
        self.scroll_to(y=number - self.size.height // 2, animate=False)

    def render_line(self, y: int) -> Strip:
        """The strip for row `y` of what is seen."""
        across, down = self.scroll_offset
        width, number = self.size.width, y + down
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line = self._lines[number]
        if self._marked and self._marked in line.plain.lower():
            line = line.copy()
            line.highlight_regex(re.compile(re.escape(self._marked), re.IGNORECASE), "reverse")
        segments = [Segment(text, style) for text, style, _ in line.render(self.app.console)]
        return Strip(segments).crop_extend(across, across + width, None).apply_style(self.rich_style)
