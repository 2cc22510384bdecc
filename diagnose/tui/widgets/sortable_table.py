"""A table whose rows are sorted by any column, drawn for the width that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from diagnose.report.sections.profile_tables import Column, ProfileTable, TableRow, sorted_rows
from diagnose.report.style.paths import clip, clipped_path
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.styled_text import styled
from diagnose.tui.theme import FAINT

_GAP = 2
_LEAST_WORDS = 16
"""Columns of a name, below which another column is left out."""
_NARROWEST = {"module": 18, "line": 14, "operator": 18, "class": 14, "lane": 10}


class SortableTable(DataTable[Text]):
    """A table with a cursor on its rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_top", show=False),
        Binding("G,shift+g", "scroll_bottom", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(
            cursor_type="row", zebra_stripes=False, cell_padding=1, cursor_foreground_priority="renderable"
        )
        self._drawn: ProfileTable | None = None
        self._width = 0
        self._holds: Callable[[TableRow], bool] = lambda _row: True
        self._column = 0
        self._reverse = True
        self._shown: list[int] = []
        self.table_rows: list[TableRow] = []
        """The rows that are shown, in their order."""

    @property
    def current(self) -> TableRow | None:
        """The row under the cursor."""
        at = self.cursor_row
        return self.table_rows[at] if 0 <= at < len(self.table_rows) else None

    def show(
        self, table: ProfileTable | None, width: int, holds: Callable[[TableRow], bool] = lambda _row: True
    ) -> None:
        """Draw those rows of a table that are held, in `width` columns; nothing without a table."""
        self._drawn, self._width, self._holds = table, width, holds
        at = self.cursor_row
        self.clear(columns=True)
        self.table_rows = []
        if table is None or not width:
            return
        self._column = min(self._column, len(table.columns) - 1)
        self.table_rows = [row for row in sorted_rows(table, self._column, self._reverse) if holds(row)]
        widths = _widths(table, width - _GAP)
        self._shown = [number for number, wide in enumerate(widths) if wide]
        for number in self._shown:
            self.add_column(self._heading(table.columns[number], number, widths[number]), width=widths[number])
        for row in self.table_rows:
            self.add_row(*(_cell(table.columns[number], row, number, widths[number]) for number in self._shown))
        self.move_cursor(row=min(at, len(self.table_rows) - 1))

    def sort_by_next(self, by: int) -> None:
        """Sort by the next column, or by the one before."""
        if self._shown:
            at = self._shown.index(self._column) if self._column in self._shown else 0
            self._choose(self._shown[(at + by) % len(self._shown)])

    def turn_around(self) -> None:
        """Sort the other way round."""
        self._reverse = not self._reverse
        self.show(self._drawn, self._width, self._holds)

    @on(DataTable.HeaderSelected)
    def _clicked(self, event: DataTable.HeaderSelected) -> None:
        column = self._shown[event.column_index]
        if column == self._column:
            self.turn_around()
        else:
            self._choose(column)

    def _choose(self, column: int) -> None:
        if self._drawn is not None:
            self._column = column
            self._reverse = self._drawn.columns[column].is_figure
            self.show(self._drawn, self._width, self._holds)

    def _heading(self, column: Column, number: int, width: int) -> Text:
        words = column.title
        if number == self._column:
            words = f"{words} {'↓' if self._reverse else '↑'}"
        words = f"{words:>{width}}" if column.is_figure else words
        return styled(clip(words, width), "bold" if number == self._column else FAINT)


def _widths(table: ProfileTable, width: int) -> list[int]:
    """Columns for each: figures as wide as they are, words what is left; 0 for what has no room."""
    natural = [
        max(len(column.title) + 2, *(len(row.cells[at].words) for row in table.rows))
        for at, column in enumerate(table.columns)
    ]
    shown = set(range(len(table.columns)))

    def least(at: int) -> int:
        column = table.columns[at]
        return natural[at] if column.is_figure else min(natural[at], _NARROWEST.get(column.title, _LEAST_WORDS))

    while sum(least(at) + _GAP for at in shown) > width:
        droppable = [at for at in shown if table.columns[at].weight]
        if not droppable:
            break
        shown.discard(max(droppable, key=lambda at: table.columns[at].weight))
    widths = [least(at) if at in shown else 0 for at in range(len(table.columns))]
    spare = width - sum(one + _GAP for one in widths if one)
    name, *others = sorted(
        (at for at in shown if not table.columns[at].is_figure), key=lambda at: table.columns[at].weight
    )
    # The name has its share first, and at the end what the others leave.
    for at, most in ((name, width // 3), *((at, width) for at in (*others, name))):
        given = max(min(spare, min(natural[at], most) - widths[at]), 0)
        widths[at] += given
        spare -= given
    return widths


def _cell(column: Column, row: TableRow, at: int, width: int) -> Text:
    words = row.cells[at].words
    if column.is_figure:
        return styled(f"{words:>{width}}", "" if column.title in ("time", "device") else FAINT)
    if column.title == "class":
        look = span_look(row.kind)
        return styled("■ ", look.colour).append(clip(words, width - 2), FAINT)
    if column.title in ("module", "line"):
        return styled(clipped_path(words, width), FAINT if column.title == "module" else "underline")
    return styled(clip(words, width))
