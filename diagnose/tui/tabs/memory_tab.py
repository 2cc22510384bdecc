"""The tab of the device's memory: what holds it at its peak, which lines asked for it, and how it went over time."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult

from diagnose.report.sections.memory import headline, memory_lines, title
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.session import State
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.lines import Lines

_ABOVE = 4  # lines beside the picture over time
_LEAST_PICTURE = 6


class MemoryTab(Tab):
    """The tab."""

    def __init__(self) -> None:
        super().__init__("memory")

    def compose(self) -> ComposeResult:
        yield Lines(id="memory-lines")

    def watch_state(self, before: State, state: State) -> None:
        """Draw anew for a new diagnosis; nothing else changes anything here."""
        if self.is_mounted and before.diagnosis is not state.diagnosis:
            self.refill()

    def fill(self) -> None:
        """Draw it."""
        diagnosis = self.state.diagnosis
        peak = diagnosis.memory if diagnosis else None
        width = max(self.room.width - 1, 20)
        lines: list[Text] = []
        if peak is not None:
            root = self.state.started.cwd if self.state.started else None
            about = [styled(line, FAINT) for line in wrap(headline(peak), width)]
            without = memory_lines(peak, root, width, rows=0)
            rows = max(self.room.height - len(without) - len(about) - _ABOVE, _LEAST_PICTURE)
            lines = [styled(title(peak), "bold"), *about, Text(), *memory_lines(peak, root, width, rows=rows)]
        self.query_one(Lines).show(lines)
