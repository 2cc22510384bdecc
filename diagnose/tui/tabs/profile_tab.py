"""Tables of kernels and of operators that are sorted by any column, with the whole of the row under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from diagnose.model import Place, StepProfile
from diagnose.report.sections.profile_tables import Column, ProfileTable, TableRow, sorted_rows
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.paths import clip, clipped_path
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import named_count
from diagnose.report.wording.run_title import of_rank
from diagnose.session import State
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.lines import Lines
from diagnose.units import format_ns

_GAP = 2
_LEAST_WORDS = 16
"""Columns of a name, below which another column is left out."""
_NARROWEST = {"module": 18, "line": 14, "operator": 18, "class": 14}


class SortableTable(DataTable[Text]):
    """A table with a cursor on its rows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_top", show=False),
        Binding("G,shift+g", "scroll_bottom", show=False),
    ]


class ProfileTab(Tab):
    """One table of the profile."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort(1)", "Sort", key_display="s S"),
        Binding("S,shift+s", "sort(-1)", show=False),
        Binding("r", "reverse", "Reverse"),
    ]

    def __init__(self, id: str, table: Callable[[StepProfile, str | None], ProfileTable]) -> None:
        super().__init__(id=id)
        self._table = table
        self._column = 0
        self._reverse = True
        self._rows: list[TableRow] = []
        self._shown: list[int] = []

    def compose(self) -> ComposeResult:
        yield SortableTable(cursor_type="row", zebra_stripes=False, cell_padding=1)
        yield Lines(id=f"{self.id}-detail")

    def watch_state(self, before: State, state: State) -> None:
        """Draw anew for a new profile; nothing else changes anything here."""
        if self.is_mounted and before.profile is not state.profile:
            self.refill()

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        if self._shown:
            at = self._shown.index(self._column) if self._column in self._shown else 0
            self._choose(self._shown[(at + by) % len(self._shown)])

    def action_reverse(self) -> None:
        """The other way round."""
        self._reverse = not self._reverse
        self.fill()

    @on(DataTable.HeaderSelected)
    def _clicked(self, event: DataTable.HeaderSelected) -> None:
        column = self._shown[event.column_index]
        if column == self._column:
            self.action_reverse()
        else:
            self._choose(column)

    @on(DataTable.RowHighlighted)
    def _moved(self) -> None:
        self._detail()

    def row_text(self) -> str:
        """The whole name of the row under the cursor, to be copied."""
        row = self._current()
        return row.full_name if row else ""

    @property
    def place(self) -> Place | None:
        """The line of the row under the cursor."""
        row = self._current()
        return row.place if row else None

    def _choose(self, column: int) -> None:
        profile = self.state.profile
        if profile is None:
            return
        self._column = column
        self._reverse = self._table(profile, None).columns[column].is_figure
        self.fill()

    def fill(self) -> None:
        """Draw it."""
        widget: DataTable[Text] = self.query_one(SortableTable)
        profile = self.state.profile
        at = widget.cursor_row
        widget.clear(columns=True)
        if profile is None or not self.size.width:
            return
        root = self.state.started.cwd if self.state.started else None
        table = self._table(profile, root)
        self._column = min(self._column, len(table.columns) - 1)
        self._rows = [row for row in sorted_rows(table, self._column, self._reverse) if self._holds(row)]
        widths = _widths(table, self.room.width - 2)
        self._shown = [number for number, width in enumerate(widths) if width]
        for number in self._shown:
            widget.add_column(self._heading(table.columns[number], number, widths[number]), width=widths[number])
        for row in self._rows:
            widget.add_row(*(_cell(table.columns[number], row, number, widths[number]) for number in self._shown))
        widget.move_cursor(row=min(at, len(self._rows) - 1))
        self._detail()

    def search(self, words: str) -> str:
        """Keep the rows whose name, class, module or line hold `words`."""
        super().search(words)
        profile = self.state.profile
        whole = len(self._table(profile, None).rows) if profile else 0
        return f"{len(self._rows)} of {whole}" if words else ""

    def _holds(self, row: TableRow) -> bool:
        texts = (row.full_name, *(cell.words for cell in row.cells))
        return any(self.searched.lower() in text.lower() for text in texts)

    def _heading(self, column: Column, number: int, width: int) -> Text:
        words = column.title
        if number == self._column:
            words = f"{words} {'↓' if self._reverse else '↑'}"
        words = f"{words:>{width}}" if column.is_figure else words
        return styled(clip(words, width), "bold" if number == self._column else FAINT)

    def _current(self) -> TableRow | None:
        at = self.query_one(SortableTable).cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def _detail(self) -> None:
        row, profile = self._current(), self.state.profile
        width = max(self.room.width - 1, 20)
        lines: list[Text] = []
        if row is not None and profile is not None:
            root = self.state.started.cwd if self.state.started else None
            table = self._table(profile, root)
            lines = [styled(line, FAINT) for line in wrap(row.full_name, width)[:3]]
            said = [
                f"{column.title} {cell.words}"
                for column, cell in zip(table.columns, row.cells, strict=True)
                if not column.is_figure and column.title not in ("kernel", "class") and cell.words != row.full_name
                if cell.words
            ]
            lines += [styled(line) for line in wrap(" · ".join(said), width)] if said else []
            mean = profile.total_ns / max(profile.step_count, 1)
            counted = f"{named_count(profile.step_count, 'step')}{of_rank(self.state)}"
            lines.append(styled(f"per step, mean of {counted}: {format_ns(mean)}", FAINT))
        self.query_one(Lines).show(lines)


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
    for at in sorted(shown, key=lambda at: table.columns[at].weight):  # the name first
        if spare > 0 and widths[at] < natural[at]:
            given = min(spare, natural[at] - widths[at])
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
