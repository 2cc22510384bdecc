"""Charts made of characters: pure functions from numbers to lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from diagnose.report.style.styled_text import styled
from diagnose.report.wording.resolution import band
from diagnose.tui.theme import FAINT, INK, LINE, STEP, WAIT, WHISKER
from diagnose.units import NS_PER_S, format_ns

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_AXIS = 8
_CUT_AT = 3.0
"""A step longer than this many medians is drawn as high as the chart: one hiccup must not flatten all others."""


@dataclass(frozen=True)
class Column:
    """One step of the chart."""

    whole_ns: int
    input_ns: int


def nice_ceiling(value: float) -> int:
    """The least round number (1, 1.2, 1.5, 2, … 8 times a power of ten) that is not below `value`; 1 for nothing."""
    if value <= 1:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        round(step * power) for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9)
    )


def step_chart(columns: Sequence[Column], width: int, height: int, plain: bool = False) -> list[Text]:
    """The newest steps as columns from the left, input wait at the foot of each; an axis at the left.

    `plain` draws input wait as shade, for screens without colour.
    """
    room = max(width - _AXIS - 1, 1)
    shown = list(columns)[-room:]
    if not shown or height < 1:
        return []
    middle = sorted(column.whole_ns for column in shown)[len(shown) // 2]
    top = nice_ceiling(min(max(column.whole_ns for column in shown), middle * _CUT_AT) * 1.02)
    heights = [(_eighths(column.whole_ns, top, height), _eighths(column.input_ns, top, height)) for column in shown]
    lines = []
    for row in range(height - 1, -1, -1):
        line = _axis_label(row, height, top)
        lines.append(_joined(line, [_cell(whole - 8 * row, waited - 8 * row, plain) for whole, waited in heights]))
    return lines


def _joined(line: Text, cells: Iterable[tuple[str, str]]) -> Text:
    """`line` with cells appended; neighbours of one style become one span."""
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(character for character, _ in run), style)
    return line


def _eighths(value_ns: int, top_ns: int, height: int) -> int:
    return min(round(value_ns / top_ns * height * 8), height * 8)


def _axis_label(row: int, height: int, top_ns: int) -> Text:
    label = ""
    if row == height - 1:
        label = _round_ns(top_ns)
    elif row == 0:
        label = "0"
    elif height >= 5 and height % 2 == 1 and row == height // 2:
        label = _round_ns(top_ns / 2)
    tick = "┤" if label else "│"
    return styled(f"{label:>{_AXIS}}", FAINT).append(tick, LINE)


def _round_ns(nanoseconds: float) -> str:
    """An axis label without needless zeros, in one unit: `100 ms`, `2.5 ms`, `1 s`, `150 s`."""
    if nanoseconds >= 59.95 * NS_PER_S:
        return f"{nanoseconds / NS_PER_S:.0f} s"
    number, unit = format_ns(nanoseconds).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _cell(whole: int, waited: int, plain: bool) -> tuple[str, str]:
    """One cell of a column of which `whole` eighths are filled and `waited` of those are input wait."""
    whole, waited = min(max(whole, 0), 8), min(max(waited, 0), 8)
    if plain:
        return ("░" if waited * 2 >= whole and waited else _EIGHTHS[whole]), INK
    if waited == 0:
        return _EIGHTHS[whole], STEP
    if whole == 8 and waited < 8:
        return _EIGHTHS[waited], f"{WAIT} on {STEP}"
    return _EIGHTHS[whole], WAIT if waited * 2 >= whole else STEP


def meter(share: float, width: int, colour: str) -> Text:
    """A share of 1 as a bar of `width` cells on a faint track."""
    filled = min(max(round(share * width), 0), width)
    return styled("━" * filled, colour).append("━" * (width - filled), LINE)


def sparkline(values: Sequence[float], full: float | None, width: int, colour: str) -> Text:
    """The newest `width` values as columns from the left, from zero to `full`; to the largest where that is unknown."""
    shown = list(values)[-width:]
    top = full or max(shown, default=0.0)
    columns = (_EIGHTHS[min(max(round(value / top * 8), 1), 8)] if top > 0 else _EIGHTHS[1] for value in shown)
    return styled("".join(columns), colour).append("·" * (width - len(shown)), LINE)


@dataclass(frozen=True)
class Scale:
    """A horizontal axis of shares, from `low` to `high`, over `width` cells."""

    low: float
    high: float
    width: int

    @classmethod
    def around(cls, values: Sequence[float], width: int) -> Scale:
        """The axis that shows zero and all of `values`, with a margin."""
        low, high = min((*values, 0.0)), max((*values, 0.0))
        margin = max((high - low) * 0.06, 0.01)
        return cls(low - margin, high + margin, max(width, 1))

    def cell(self, share: float) -> int:
        """The cell that `share` falls into, clipped to the axis."""
        position = int((share - self.low) / (self.high - self.low) * self.width)
        return min(max(position, 0), self.width - 1)


def interval_line(scale: Scale, low: float, estimate: float, high: float, resolution: float, colour: str) -> Text:
    """An interval with its estimate on `scale`; zero is a rule, and what the machine cannot tell from it is shaded."""
    cells = [(" ", LINE)] * scale.width
    slower, faster = band(resolution)
    for index in range(scale.cell(slower), scale.cell(faster) + 1):
        cells[index] = ("░", LINE)
    cells[scale.cell(0.0)] = ("│", FAINT)
    first, last = scale.cell(low), scale.cell(high)
    for index in range(first, last + 1):
        cells[index] = ("━", colour)
    cells[scale.cell(estimate)] = ("●", colour)
    return _joined(styled(""), cells)


def narrowing(
    points: Sequence[tuple[float, float, float]], width: int, height: int, resolution: float, colour: str
) -> list[Text]:
    """Intervals (low, estimate, high) pair by pair, oldest left: how the answer became certain. Zero is a rule."""
    room = max(width - _AXIS - 1, 1)
    shown = list(points)[-room:]
    if not shown or height < 2:
        return []
    settled = shown[len(shown) // 3 :]  # the first intervals are wide; they may leave the picture, the last must not
    low, high = min(point[0] for point in settled), max(point[2] for point in settled)
    margin = max((high - low) * 0.1, 0.001)
    scale = Scale(low - margin, high + margin, height)
    lines = []
    for row in range(height):
        level = height - 1 - row
        line = _share_label(scale, level, row in (0, height - 1))
        zero = scale.low < 0.0 < scale.high and level == scale.cell(0.0)
        ground = "─" if zero else "░" if _unsure(scale, level, resolution) else " "
        cells = [_interval_cell(scale, level, point, colour) or (ground, LINE) for point in shown]
        lines.append(_joined(line, [*cells, *[(ground, LINE)] * (room - len(shown))]))
    return lines


def _interval_cell(scale: Scale, level: int, point: tuple[float, float, float], colour: str) -> tuple[str, str] | None:
    low, estimate, high = point
    if level == scale.cell(estimate) and scale.low <= estimate <= scale.high:
        return "●", colour
    if low < scale.high and high > scale.low and scale.cell(low) <= level <= scale.cell(high):
        return "│", WHISKER
    return None


def _unsure(scale: Scale, level: int, resolution: float) -> bool:
    slower, faster = band(resolution)
    inside = slower < scale.high and faster > scale.low
    return inside and resolution > 0 and scale.cell(slower) <= level <= scale.cell(faster)


def _share_label(scale: Scale, level: int, labelled: bool) -> Text:
    if scale.low < 0.0 < scale.high and level == scale.cell(0.0):
        label = "0 %"
    elif labelled:
        share = scale.low + (level + 0.5) / scale.width * (scale.high - scale.low)
        label = f"{100 * share:+.1f} %".replace("-", "−")
    else:
        label = ""
    return styled(f"{label:>{_AXIS}}", FAINT).append("┤" if label else "│", LINE)
