"""The fifth tab: what the program printed."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult

from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.tui.drawing.output_lines import output_lines
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.lines import Lines


class OutputPane(Tab):
    """The tab. It is drawn only while it is seen: a program may print a great deal."""

    def __init__(self) -> None:
        super().__init__("output")
        self._drawn: tuple[str, list[Text]] | None = None

    def compose(self) -> ComposeResult:
        yield Lines(id="output-lines", follow=True)

    def watch_state(self) -> None:
        """Draw what came since."""
        if self.is_mounted and self.display:
            self.fill()

    def fit(self) -> None:
        """Draw what came while it was not seen."""
        if self.display:
            self.fill()

    def fill(self) -> None:
        """Show all of the output that is kept."""
        output = self.state.output
        drawn = (output, [] if output else self._empty())
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self.query_one(Lines).show(output_lines(output) if output else drawn[1])

    def search(self, words: str) -> str:
        """Mark every line that holds `words`, and go to the last one."""
        self.searched = words
        return self.query_one(Lines).mark(words)

    def _empty(self) -> list[Text]:
        words = "What the program prints appears here."
        return [styled("No output", "bold"), *(styled(line, FAINT) for line in wrap(words, self.room.width - 1))]
