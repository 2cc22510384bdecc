"""The events of the recording behind the numbers of a finding, one number at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from diagnose.model import Evidence, TraceEvent
from diagnose.report.sections.event_table import event_table, events_in_words
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import place
from diagnose.report.style.styled_text import styled
from diagnose.report.wording.phrases import evidence as in_words
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.sortable_table import SortableTable

_BESIDE = 8
"""Columns of the border and the padding."""


class EvidenceScreen(ModalScreen[TraceEvent]):
    """A card over the screen; answers with the event that is to be shown on the timeline, if any."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close", priority=True),
        Binding("s", "sort(1)", "Sort"),
        Binding("S,shift+s", "sort(-1)", show=False),
        Binding("r", "reverse", "Reverse"),
        Binding("right,l,right_square_bracket", "number(1)", "Next number"),
        Binding("left,h,left_square_bracket", "number(-1)", show=False),
        Binding("t,enter", "in_time", "In time", priority=True),
    ]

    def __init__(self, rule: str, numbers: Sequence[Evidence], root: str | None) -> None:
        super().__init__()
        self._rule = rule
        self._numbers = tuple(numbers)
        self._root = root
        self._at = 0

    def compose(self) -> ComposeResult:
        with Container(id="evidence-card") as card:
            yield Static(id="evidence-number")
            yield SortableTable()
            yield Static(id="evidence-event")
        card.border_title = styled(f"{self._rule}: events behind a number")  # a string would be markup
        card.border_subtitle = "t in time  s sort  r reverse  ← → other numbers  esc close"

    def on_mount(self) -> None:
        """Show the first number."""
        self._fill()

    def on_resize(self) -> None:
        """Choose the columns anew for another size."""
        self._fill()

    def action_number(self, by: int) -> None:
        """Show the events of the next number, or of the one before."""
        self._at = (self._at + by) % len(self._numbers)
        self._fill()

    def action_sort(self, by: int) -> None:
        """Sort by the next column, or the one before."""
        self.query_one(SortableTable).sort_by_next(by)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.query_one(SortableTable).turn_around()

    def action_in_time(self) -> None:
        """Close, and show the event under the cursor on the timeline."""
        self.dismiss(self._event())

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        row = self.query_one(SortableTable).current
        lines = wrap(row.full_name, self._width)[:2] if row is not None else []
        if row is not None and row.place is not None:
            lines.append(f"from {place(row.place, self._root)}")
        self.query_one("#evidence-event", Static).update(styled("\n".join(lines), FAINT))

    @property
    def _width(self) -> int:
        return max(self.app.size.width - _BESIDE, 20)

    def _event(self) -> TraceEvent | None:
        row = self.query_one(SortableTable).current
        table = event_table(self._numbers[self._at], self._root)
        return self._numbers[self._at].events[table.rows.index(row)] if row is not None else None

    def _fill(self) -> None:
        number = self._numbers[self._at]
        words = styled(in_words(number), "bold").append(f"   {events_in_words(number)}", FAINT)
        if len(self._numbers) > 1:
            words.append(f"   number {self._at + 1} of {len(self._numbers)}", FAINT)
        self.query_one("#evidence-number", Static).update(Text("\n").join([words, Text()]))
        self.query_one(SortableTable).show(event_table(number, self._root), self._width)
