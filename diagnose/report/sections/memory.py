"""A device's memory at its peak, as slices, as lines of a table, and as a picture over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from diagnose.model import MemoryPart, MemoryPeak, MemoryTimeline
from diagnose.report.style.paths import clip, clipped_path, place
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import MEMORY, MUTED, Look
from diagnose.units import format_bytes, format_share

ONLY_MEMORY = "This is a record of the allocator: it has no training steps, so nothing is said about time."
_SMALLEST_PART = 0.01
_MOST_PARTS = 8
_ROWS = 6
_COLUMNS = 60
_LEAD = 23
"""Columns of a line before its place."""
_NARROWEST = 14


@dataclass(frozen=True)
class Held:
    """One category of what the allocator has of the device."""

    category: str
    look: Look
    size_bytes: int
    share: float
    """The share of what the allocator has, or of what is held, where that is not known."""


def held_categories(peak: MemoryPeak) -> tuple[Held, ...]:
    """The categories in the order of the vocabulary, then what is free; they sum to what the allocator has."""
    sizes = dict(peak.categories)
    if peak.reserved_bytes is not None:
        fragments = min(peak.fragments_bytes or 0, max(peak.reserved_bytes - peak.held_bytes, 0))
        sizes |= {"fragments": fragments, "free": max(peak.reserved_bytes - peak.held_bytes - fragments, 0)}
    whole = sum(sizes.values())
    order = [*MEMORY, *(name for name in sizes if name not in MEMORY)]
    return tuple(
        Held(name, MEMORY.get(name, MEMORY["other"]), sizes[name], sizes[name] / whole)
        for name in order
        if sizes.get(name, 0) > 0
    )


def headline(peak: MemoryPeak) -> str:
    """Return the memory held, taken from the device, and available, in a few words."""
    words = f"{format_bytes(peak.held_bytes)} held"
    if peak.reserved_bytes is not None:
        words += f", {format_bytes(peak.reserved_bytes)} taken from the device"
    if peak.capacity_bytes is not None:
        has = format_bytes(peak.capacity_bytes)
        words += f" of the device's {has}" if peak.reserved_bytes is None else f", which has {has}"
    return words


def title(peak: MemoryPeak) -> str:
    """The heading: which moment it is."""
    if peak.wanted_bytes is not None:
        return f"What held the memory when {format_bytes(peak.wanted_bytes)} found no room"
    return "What holds the memory at its peak"


def weighty(peak: MemoryPeak) -> tuple[MemoryPart, ...]:
    """The parts that are worth a line, the most first."""
    known = [part for part in peak.parts if part.held_bytes >= _SMALLEST_PART * peak.held_bytes]
    return tuple(known[:_MOST_PARTS])


def life(part: MemoryPart) -> str:
    """Return the phases in which a part was allocated and freed."""
    if part.taken is None:
        return "in no known phase"
    return f"{part.taken} → {'held' if part.freed == 'never' else part.freed or 'unknown'}"


def memory_lines(peak: MemoryPeak, root: str | None, width: int, rows: int = _ROWS) -> list[Text]:
    """The table, the lines that asked for most, and the timeline in `rows` lines; without its heading."""
    parts = held_categories(peak)
    label = max((len(part.look.label) for part in parts), default=0)
    lines = []
    for part in parts:
        line = styled(f"  {part.look.mark} ", part.look.colour).append(f"{part.look.label:<{label}}  ")
        line.append(f"{format_bytes(part.size_bytes):>9}", "bold").append(f" {format_share(part.share):>6}", MUTED)
        room = width - len(line) - 2
        cells = round(part.share * min(room, _COLUMNS))
        lines.append(line.append("  ").append(part.look.mark * cells, part.look.colour))
    lines += [Text(), styled("  asked for by", MUTED)] if weighty(peak) else []
    lines += _asked(weighty(peak), root, width)
    if peak.timeline is not None and rows:
        lines += [Text(), *timeline_lines(peak.timeline, width, rows)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _asked(parts: Sequence[MemoryPart], root: str | None, width: int) -> list[Text]:
    """A line for each part: size, pieces, where, what it serves as and how long; the code where there is room."""
    said = [f"{MEMORY.get(part.category, MEMORY['other']).label}, {life(part)}" for part in parts]
    most = max(map(len, said), default=0)
    spots = [place(part.place, root) if part.place else part.by or "no line known" for part in parts]
    room = max(min(max(map(len, spots), default=0), width - _LEAD - most - 2), _NARROWEST)
    lines = []
    for part, words, spot in zip(parts, said, spots, strict=True):
        look = MEMORY.get(part.category, MEMORY["other"])
        line = styled(f"  {look.mark} ", look.colour).append(f"{format_bytes(part.held_bytes):>9}", "bold")
        line.append(f" {part.pieces:>6,} × ", MUTED)
        where = clipped_path(spot, room)
        line.append(where, "bold underline" if part.place else MUTED).append(" " * (room - len(where)))
        line.append(f"  {words}", MUTED)
        spare = width - len(line) - 2 - (most - len(words))
        if part.place and part.place.code and spare >= _NARROWEST:
            line.append(" " * (most - len(words) + 2)).append(clip(part.place.code, spare), "italic")
        lines.append(line)
    return lines


def timeline_lines(timeline: MemoryTimeline, width: int, rows: int = _ROWS) -> list[Text]:
    """The categories over time as stacked columns, `rows` high; each cell is what fills most of it."""
    names = [name for name in MEMORY if name in timeline.categories]
    moments = len(next(iter(timeline.categories.values()), ()))
    columns = width - 12 if moments > 1 else 0
    if columns < 2 or not names:
        return []
    stacked = [_column(timeline, names, at, moments, columns) for at in range(columns)]
    most = max(sum(column) for column in stacked)
    if most == 0:
        return []
    lines = []
    for row in range(rows - 1, -1, -1):
        lead = format_bytes(most) if row == rows - 1 else "0" if row == 0 else ""
        line = styled(f"  {lead:>9} ", MUTED)
        for column in stacked:
            name = _at_height(column, names, (row + 0.5) * most / rows)
            line.append(MEMORY[name].mark if name else " ", MEMORY[name].colour if name else "")
        lines.append(line)
    return lines


def _column(timeline: MemoryTimeline, names: Sequence[str], at: int, moments: int, columns: int) -> list[int]:
    """The categories of the moment at which most was held among those that a column stands for."""
    first = at * moments // columns
    last = max((at + 1) * moments // columns, first + 1)
    return max(
        ([timeline.categories[name][moment] for name in names] for moment in range(first, last)),
        key=sum,
    )


def _at_height(column: Sequence[int], names: Sequence[str], height: float) -> str | None:
    for name, size in zip(names, column, strict=True):
        height -= size
        if height < 0:
            return name
    return None
