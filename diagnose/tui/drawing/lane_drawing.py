"""A stretch of a lane as cells: pure functions from spans to a line of text."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from diagnose.model import Lane, Timeline
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.paths import clip, clipped_path
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.styled_text import styled
from diagnose.tui.theme import FAINT, LINE, PAPER
from diagnose.units import format_ns

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_NAMED_FROM = 5
"""Cells that a span must have to bear its name."""


@dataclass(frozen=True)
class Window:
    """The stretch of time that is shown, and the cells that it has."""

    begin_ns: float
    length_ns: float
    cells: int

    def cell(self, moment_ns: float) -> int:
        """The cell of a moment; outside of the window where that is."""
        return int((moment_ns - self.begin_ns) / self.length_ns * self.cells // 1)

    def moment(self, cell: float) -> float:
        """Return when a cell begins."""
        return self.begin_ns + cell / self.cells * self.length_ns


def lane_name(lane: Lane, width: int) -> str:
    """Return the lane's name in at most `width` columns: lanes of one thread differ in the end of theirs."""
    return clipped_path(lane.name, width) if lane.kind == "host" else clip(lane.name, width)


def shown_label(lane: Lane, timeline: Timeline, at: int) -> str:
    """Return the label of a span."""
    label = timeline.labels[lane.label[at]]
    if lane.kind == "gaps":
        return span_look(label).label
    return short_kernel(label) if lane.kind == "device" else label


def spans_in(lane: Lane, window: Window) -> range:
    """The spans that lie in the window, at least in part."""
    first = max(bisect_right(lane.start_ns, window.begin_ns) - 1, 0)
    last = bisect_right(lane.start_ns, window.begin_ns + window.length_ns)
    while first < last and lane.start_ns[first] + lane.length_ns[first] <= window.begin_ns:
        first += 1
    return range(first, last)


def lane_lines(lane: Lane, timeline: Timeline, window: Window, height: int = 1, plain: bool = False) -> list[Text]:
    """`height` lines: how much of each cell is filled, and with what; wide spans bear their names.

    `plain` tells classes apart by their marks, for screens without colour.
    """
    filled: list[Counter[int]] = [Counter() for _ in range(window.cells)]
    names: list[tuple[int, int, int]] = []
    per_cell = window.length_ns / window.cells
    for at in spans_in(lane, window):
        begin = (lane.start_ns[at] - window.begin_ns) / per_cell
        end = begin + lane.length_ns[at] / per_cell
        first, last = max(int(begin), 0), min(int(end), window.cells - 1)
        if last - first >= _NAMED_FROM:
            names.append((first, last, at))
        for cell in range(first, last + 1):
            filled[cell][lane.look[at]] += round(1000 * (min(end, cell + 1) - max(begin, cell)))
    lines = []
    for row in range(height - 1, -1, -1):
        cells = [_cell(parts, timeline.looks, plain, row, height) for parts in filled]
        if not plain and row == height // 2:
            for first, last, at in names:
                _write_name(cells, shown_label(lane, timeline, at), first, last, lane.look[at], timeline.looks)
        line = styled("")
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            line.append("".join(character for character, _ in run), style)
        lines.append(line)
    return lines


def _cell(parts: Counter[int], looks: Sequence[str], plain: bool, row: int, height: int) -> tuple[str, str]:
    """One cell of the row that many above the lowest."""
    whole = parts.total()
    if whole <= 0:
        return " ", ""
    look = span_look(looks[parts.most_common(1)[0][0]])
    if plain:
        return (look.mark if whole >= 300 else "·"), ""
    eighths = max(round(whole * height / 125), 1) - 8 * row
    return _EIGHTHS[min(max(eighths, 0), 8)], look.colour


def _write_name(
    cells: list[tuple[str, str]], name: str, first: int, last: int, look: int, looks: Sequence[str]
) -> None:
    """The name of a span in the cells that it fills, dark on its colour."""
    colour = span_look(looks[look]).colour
    room = last - first - 1
    for number, character in enumerate(f"{clip(name, room):<{room}}"):
        cells[first + 1 + number] = (character, f"{PAPER} on {colour}")


def axis_line(window: Window, zero_ns: float) -> Text:
    """Times along the window, counted from `zero_ns`."""
    cells = [" "] * window.cells
    step = _nice(window.length_ns / max(window.cells // 16, 1))
    number = -(-(window.begin_ns - zero_ns) // step)
    at = zero_ns + number * step
    while at < window.begin_ns + window.length_ns:
        label = "0" if number == 0 else _axis_label(at - zero_ns)
        start = window.cell(at)
        text = f"│{label}"
        if start >= 0 and start + len(text) <= window.cells:
            cells[start : start + len(text)] = text
        number += 1
        at = zero_ns + number * step
    return styled("".join(cells), FAINT)


def _axis_label(nanoseconds: float) -> str:
    number, unit = format_ns(nanoseconds).split(" ", 1)
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _nice(least: float) -> int:
    """The least of 1, 2, 5, 10, 20, … that is not below `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


def step_line(timeline: Timeline, window: Window, number_from: int) -> Text:
    """The borders of the steps, each with its number and its length."""
    line = [("─", LINE)] * window.cells
    for number, (begin, end) in enumerate(zip(timeline.steps_ns, timeline.steps_ns[1:], strict=False)):
        first, last = window.cell(begin), window.cell(end)
        if 0 <= first < window.cells:
            line[first] = ("├", FAINT)
        start, room = max(first, 0) + 1, min(last, window.cells) - max(first, 0) - 1
        words = f" step {number_from + number + 1}  {format_ns(end - begin)} "
        if room >= len(words):
            line[start : start + len(words)] = [(character, FAINT) for character in words]
    text = styled("")
    for style, run in groupby(line, key=lambda cell: cell[1]):
        text.append("".join(character for character, _ in run), style)
    return text
