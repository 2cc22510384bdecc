"""A stretch of the screen that is drawn from the state, in exactly the columns it has."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from diagnose.report.style.styled_text import styled
from diagnose.session import State


class Panel(Widget):
    """Lines of text made from the state by `draw`. Its height is what it draws, or what the style sheet gives it."""

    state: reactive[State] = reactive(State, always_update=True, layout=True)

    def draw(self, width: int, height: int | None) -> list[Text]:
        """The lines for `width` columns. `height` is None while the layout asks how many there would be."""
        raise NotImplementedError

    def render(self) -> Text:
        """All lines, as Textual wants them."""
        return Text("\n", no_wrap=True, end="").join(self.draw(self.size.width, self.size.height))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's call
        """Return the number of lines that are drawn at that width."""
        return len(self.draw(width, None))


def centred(lines: list[Text], width: int, height: int) -> list[Text]:
    """Lines in the middle of an empty room."""
    above = max((height - len(lines)) // 2, 0)
    return [Text()] * above + [styled(" " * max((width - len(line)) // 2, 0)).append_text(line) for line in lines]


def spread(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends of one line; `left` gives way when both do not fit."""
    room = max(width - len(right) - 2, 0)
    if len(left) > room:
        left = left.copy()
        left.truncate(room, overflow="ellipsis")
    line = styled("")
    line.append_text(left).append(" " * max(width - len(left) - len(right), 0)).append_text(right)
    return line
