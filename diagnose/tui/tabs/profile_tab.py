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
from diagnose.report.sections.profile_tables import ProfileTable, TableRow
from diagnose.report.style.line_wrapping import wrap
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import named_count
from diagnose.report.wording.run_title import of_rank
from diagnose.session import State
from diagnose.tui.tabs.tab import Tab
from diagnose.tui.theme import FAINT
from diagnose.tui.widgets.lines import Lines
from diagnose.tui.widgets.sortable_table import SortableTable
from diagnose.units import format_ns


class ProfileTab(Tab):
    """One table of the profile."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort(1)", "Sort", key_display="s S"),
        Binding("S,shift+s", "sort(-1)", show=False),
        Binding("r", "sort(0)", "Reverse"),
    ]

    def __init__(self, id: str, table: Callable[[StepProfile, str | None], ProfileTable]) -> None:
        super().__init__(id=id)
        self._table = table

    def compose(self) -> ComposeResult:
        yield SortableTable()
        yield Lines(id=f"{self.id}-detail")

    def watch_state(self, before: State, state: State) -> None:
        """Draw anew for a new profile; nothing else changes anything here."""
        if self.is_mounted and before.profile is not state.profile:
            self.refill()

    def action_sort(self, by: int) -> None:
        """Sort by the next column, or the one before; with 0 the other way round."""
        table = self.query_one(SortableTable)
        if by:
            table.sort_by_next(by)
        else:
            table.turn_around()
        self._detail()

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

    def fill(self) -> None:
        """Draw it."""
        profile = self.state.profile
        root = self.state.started.cwd if self.state.started else None
        table = self._table(profile, root) if profile is not None else None
        self.query_one(SortableTable).show(table, self.room.width if self.size.width else 0, self._holds)
        self._detail()

    def search(self, words: str) -> str:
        """Keep the rows whose name, class, module or line hold `words`."""
        super().search(words)
        profile = self.state.profile
        whole = len(self._table(profile, None).rows) if profile else 0
        return f"{len(self.query_one(SortableTable).table_rows)} of {whole}" if words else ""

    def _holds(self, row: TableRow) -> bool:
        texts = (row.full_name, *(cell.words for cell in row.cells))
        return any(self.searched.lower() in text.lower() for text in texts)

    def _current(self) -> TableRow | None:
        return self.query_one(SortableTable).current

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
