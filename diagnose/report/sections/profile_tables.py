"""The kernels and the operators of a step as tables of words that can be sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diagnose.model import KernelRow, OperatorRow, Place, StepProfile
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.paths import place
from diagnose.report.style.span_looks import span_look
from diagnose.units import format_count, format_ns, format_share


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    is_figure: bool
    """Whether it is set at the right, and sorted from large to small first."""
    weight: int
    """How early it is left out where there is no room: the largest first; 0 stays."""


@dataclass(frozen=True)
class Cell:
    """A table's value as it is shown, and the key it is sorted by."""

    words: str
    key: float | str


@dataclass(frozen=True)
class TableRow:
    """One kernel or operator."""

    cells: tuple[Cell, ...]
    kind: str
    full_name: str
    place: Place | None = None


@dataclass(frozen=True)
class ProfileTable:
    """Columns and rows; the first figure is what rows are sorted by at first."""

    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]


_KERNELS = (
    Column("time", True, 0),
    Column("share", True, 1),
    Column("count", True, 2),
    Column("each", True, 4),
    Column("class", False, 3),
    Column("kernel", False, 0),
    Column("operator", False, 5),
    Column("module", False, 7),
    Column("line", False, 6),
)
_OPERATORS = (
    Column("device", True, 0),
    Column("share", True, 1),
    Column("host", True, 0),
    Column("count", True, 2),
    Column("operator", False, 0),
    Column("module", False, 4),
    Column("line", False, 3),
)


def kernel_table(profile: StepProfile, root: str | None = None) -> ProfileTable:
    """Kernels of a mean step. Times and counts are per step; shares are of the step."""
    rows = tuple(_kernel(row, profile, root) for row in profile.kernels)
    return with_known_columns(_KERNELS, rows)


def operator_table(profile: StepProfile, root: str | None = None) -> ProfileTable:
    """Operators of a mean step. The share is of the step: of device time, or of host time where there is no device."""
    on_device = any(row.device_ns for row in profile.operators)
    rows = tuple(_operator(row, profile, root, on_device) for row in profile.operators)
    return with_known_columns(_OPERATORS, rows)


def sorted_rows(table: ProfileTable, column: int, reverse: bool) -> list[TableRow]:
    """The rows by one column; those that have nothing in it come last."""
    known = [row for row in table.rows if row.cells[column].words]
    by_key: Callable[[TableRow], tuple[int, float, str]] = lambda row: _order(row.cells[column].key)  # noqa: E731
    return [*sorted(known, key=by_key, reverse=reverse), *(row for row in table.rows if not row.cells[column].words)]


def _order(key: float | str) -> tuple[int, float, str]:
    return (0, 0.0, key.lower()) if isinstance(key, str) else (1, key, "")


def _kernel(row: KernelRow, profile: StepProfile, root: str | None) -> TableRow:
    steps = max(profile.step_count, 1)
    return TableRow(
        (
            _time(row.total_ns / steps),
            _share(row.total_ns, profile),
            _count(row.count / steps),
            _time(row.total_ns / max(row.count, 1)),
            words_cell(span_look(row.kind).label),
            words_cell(short_kernel(row.name)),
            words_cell(row.operator or ""),
            words_cell(row.module or ""),
            place_cell(row.place, root),
        ),
        row.kind,
        row.name,
        row.place,
    )


def _operator(row: OperatorRow, profile: StepProfile, root: str | None, on_device: bool) -> TableRow:
    steps = max(profile.step_count, 1)
    return TableRow(
        (
            _time(row.device_ns / steps),
            _share(row.device_ns if on_device else row.host_ns, profile),
            _time(row.host_ns / steps),
            _count(row.count / steps),
            words_cell(row.name),
            words_cell(row.module or ""),
            place_cell(row.place, root),
        ),
        "other",
        row.name,
        row.place,
    )


def _time(nanoseconds: float) -> Cell:
    return Cell(format_ns(nanoseconds) if nanoseconds else "", nanoseconds)


def _share(nanoseconds: int, profile: StepProfile) -> Cell:
    share = nanoseconds / profile.total_ns if profile.total_ns else 0.0
    return Cell(format_share(share) if nanoseconds else "", share)


def _count(number: float) -> Cell:
    return Cell(format_count(number), number)


def words_cell(words: str) -> Cell:
    """Words that are sorted by themselves."""
    return Cell(words, words)


def place_cell(where: Place | None, root: str | None) -> Cell:
    """A line of source, relative to `root`; empty where it is unknown."""
    return words_cell(place(where, root) if where else "")


def with_known_columns(columns: Sequence[Column], rows: tuple[TableRow, ...]) -> ProfileTable:
    """Return the table without the columns in which no row has anything."""
    kept = [at for at in range(len(columns)) if any(row.cells[at].words for row in rows)]
    return ProfileTable(
        tuple(columns[at] for at in kept),
        tuple(TableRow(tuple(row.cells[at] for at in kept), row.kind, row.full_name, row.place) for row in rows),
    )
