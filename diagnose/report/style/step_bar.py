"""An accounting as slices of one step, and the bar and legend that draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from diagnose.model import Accounting
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import CLASSES, MUTED, Look, class_look
from diagnose.units import format_ns, format_share


@dataclass(frozen=True)
class Slice:
    """One class of a step's time."""

    kind: str
    look: Look
    ns: int
    share: float
    """The share of the whole accounting (0 to 1)."""


def slices(accounting: Accounting) -> tuple[Slice, ...]:
    """The classes that took any time, in the order of the vocabulary; causes unknown to it come last."""
    times = {
        "compute": accounting.compute,
        "exposed_comm": accounting.exposed_comm,
        "exposed_copy": accounting.exposed_copy,
        **accounting.idle,
    }
    whole = accounting.total_ns
    order = list(CLASSES)
    kinds = sorted(times, key=lambda kind: order.index(kind) if kind in CLASSES else len(order))
    return tuple(
        Slice(kind, _look(kind, accounting), times[kind], times[kind] / whole) for kind in kinds if times[kind] > 0
    )


def is_recorded(accounting: Accounting) -> bool:
    """Whether any work was recorded: where none was, as in a program that ended before its trace, none is known."""
    return accounting.compute + accounting.exposed_comm + accounting.exposed_copy > 0


def _look(kind: str, accounting: Accounting) -> Look:
    """Time of which nothing is known is idle only where work was recorded beside it."""
    look = class_look(kind)
    return look if kind != "unknown" or is_recorded(accounting) else replace(look, label="not recorded")


def cells(parts: Sequence[Slice], width: int) -> list[int]:
    """Return how many of `width` cells each slice gets: they sum to `width`, each within one cell of its exact part."""
    exact = [part.share * width for part in parts]
    given = [int(cell) for cell in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: given[index] - exact[index])
    for index in by_remainder[: width - sum(given)]:
        given[index] += 1
    return given


def bar(parts: Sequence[Slice], width: int, solid: bool = False) -> Text:
    """One line of `width` block characters. Each class has its own fill; `solid` leaves the difference to colour."""
    line = styled("")
    for part, count in zip(parts, cells(parts, width), strict=True):
        line.append(("█" if solid else part.look.mark) * count, part.look.colour)
    return line


def legend(parts: Sequence[Slice], width: int, solid: bool = False) -> list[Text]:
    """Return each slice with its time and share, in as many columns as fit in `width`."""
    if not parts:
        return []
    label_width = max(len(part.look.label) for part in parts)
    entries = [_entry(part, label_width, solid) for part in parts]
    columns = max(1, min((width + _LEAST_GAP) // (len(entries[0]) + _LEAST_GAP), _MOST_COLUMNS, len(entries)))
    gap = min((width - columns * len(entries[0])) // max(columns - 1, 1), _GAP)
    rows = -(-len(entries) // columns)
    lines = []
    for row in range(rows):
        line = styled("")
        for column in range(columns):
            index = column * rows + row
            if index < len(entries):
                line.append_text(entries[index]).append(" " * gap)
        line.rstrip()
        lines.append(line)
    return lines


_GAP, _LEAST_GAP = 4, 2
_MOST_COLUMNS = 3


def _entry(part: Slice, label_width: int, solid: bool) -> Text:
    entry = styled("")
    entry.append("■" if solid else part.look.mark, part.look.colour)
    entry.append(f" {part.look.label:<{label_width}}  ")
    entry.append(f"{format_ns(part.ns):>8}", "bold")
    entry.append(f" {format_share(part.share):>6}", MUTED)
    return entry
