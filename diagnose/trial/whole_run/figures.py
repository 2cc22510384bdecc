"""Compares printed text: the same lines, and in them the same figures.

A line is its template, the text with every number taken out, and its numbers. Lines are compared by template, in order;
the k-th number of a template's lines is a column of figures. Which figures may differ:

- those of time and rate: a number with a unit of time or rate after it (`3.2s`, `45 it/s`, `812 tok/s`), one that
  follows a word such as `time`, `elapsed` or `throughput`, a clock (`00:12`), a date;
- those of a column in which the original differs from itself when it runs a second time;
- for a fix that rounds differently: those of a column by `SPREADS` times what the original's own figures move where its
  weights are disturbed by as much as it rounds, and, unless they count something, by a few roundings and one unit of
  the last printed digit. Whole numbers count, but for those of percent, which are rounded shares.

Of a line that is written over by carriage returns its last state counts. Warnings, and the lines of a traceback other
than its exception, name places in the source that a patch moves; they are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SPREADS = 10.0
"""How many times the original's own movement a rounding fix may move a figure; one or two samples say little."""
LEAST_RELATIVE = 1e-5
"""The smallest relative difference that counts, some ten roundings of float32: no figure of a rounding fix is held
to less."""
ROUNDINGS = 4.0
"""The smallest difference that counts, in roundings of the format that the fix declares."""

_NUMBER = re.compile(
    r"(?<![A-Za-z_.\d])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\d)|\b(?:nan|inf)\b"
)
_CLOCK = re.compile(
    r"\b(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}|\d{8}[-_]\d{4,6})"
    r"(?:[ T_]\d{1,2}:\d{2}(?::\d{2})?)?(?:[.,]\d+)?|\b(?:\d+:)?\d{1,2}:\d{2}(?:[.,]\d+)?\b"
)
_UNIT = re.compile(
    r"\s?(?:[mnuµ]?s|secs?|seconds?|minutes?|hrs?|hours?|[a-zA-Z]+/(?:s|sec|second|ms|min|h)|s/[a-z]+|[fiqst]ps|[FIQST]PS)\b"
)
_WORD = re.compile(
    r"(?<![A-Za-z])(?:time|elapsed|took|eta|speed|throughput|duration|latency|[fiqst]ps|dt|[a-z]+/s(?:ec)?|(?:samples|tokens|images|steps|"
    r"frames|items|batches)[ _](?:per|/)[ _]?s(?:ec(?:ond)?)?)(?:_?m?s|_sec(?:onds)?)?(?: taken| elapsed| per \w+)?"
    r"(?: ?\((?:m?s|sec|seconds)\))?[\"']?\s*[:=]?\s*$",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\s?%")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WARNING = re.compile(r"^.*:\d+: \w*(?:Warning|warning): .*$|^\s*\[?W\d{3,}.*$|^\[[WIE]\d{3} .*$")
_RANK = re.compile(r"^\[rank\d+\]: ")
"""The prefix of a traceback's lines where there are several ranks."""
_BAR = re.compile(r"\d+%\|.*\|")
_FRAMES = re.compile(r"^(?:Traceback \(most recent call last\):|  File |    |During handling|The above exception)")


@dataclass(frozen=True)
class Line:
    """A printed line."""

    template: str
    numbers: tuple[str, ...]
    """The numbers as printed, each with the sign of percent where one follows it."""
    text: str = field(default="", compare=False)
    """The text as printed."""


@dataclass(frozen=True)
class Text:
    """Printed lines, in order."""

    lines: tuple[Line, ...]

    def columns(self) -> dict[str, list[tuple[str, ...]]]:
        """The numbers of each template's lines, in order."""
        found: dict[str, list[tuple[str, ...]]] = {}
        for line in self.lines:
            found.setdefault(line.template, []).append(line.numbers)
        return found


@dataclass(frozen=True)
class Noise:
    """The variation of the figures: a run of the program as found, and others under the same or disturbed settings."""

    base: Text
    runs: Sequence[Text]
    disturbed: float | None = None
    """The relative disturbance of the weights in the other runs: figures may move as far. None: there is none, and
    they may not."""


def least_move(disturbed: float | None) -> float:
    """Return how far a fix may move a figure in any case that rounds by so much, relatively; 0 for one that does not
    round."""
    return 0.0 if disturbed is None else max(LEAST_RELATIVE, ROUNDINGS * disturbed)


def read_text(text: str, names: Mapping[str, str]) -> Text:
    """The lines of what was printed; `names` are folders of this run, and what stands for them."""
    for name, title in names.items():
        text = text.replace(name, title)
    lines = []
    shown = False
    for raw in text.split("\n"):
        parts = [part for part in raw.split("\r") if part.strip()]
        line = _RANK.sub("", _ESCAPE.sub("", parts[-1])).rstrip() if parts else ""
        if _WARNING.match(line):
            shown = True  # the source line that it quotes comes next
            continue
        if (shown and line.startswith("  ")) or _FRAMES.match(line) or _BAR.search(line):
            shown = False
            continue
        shown = False
        if line.strip():
            lines.append(line_of(line))
    return Text(tuple(lines))


def line_of(printed: str) -> Line:
    """A printed line, taken apart."""
    text = _CLOCK.sub("<time>", printed)
    numbers: list[str] = []
    template, at = "", 0
    for match in _NUMBER.finditer(text):
        before = text[at : match.start()]
        template += before
        if _UNIT.match(text, match.end()) or _WORD.search(before):
            template += "<time>"
        else:
            template += "#"
            numbers.append(match.group() + ("%" if _PERCENT.match(text, match.end()) else ""))
        at = match.end()
    template += text[at:]
    # A field may be padded to a width.
    return Line(re.sub(r"\s+", " ", template).strip(), tuple(numbers), printed)


def differences(original: Text, patched: Text, noise: Noise) -> list[str]:
    """Return the differences in what the patched program prints, in words; empty where there are none."""
    before, after, base = original.columns(), patched.columns(), noise.base.columns()
    others = [run.columns() for run in noise.runs]
    restless = {
        template
        for run in others
        for template in base.keys() | run.keys()
        if len(base.get(template, ())) != len(run.get(template, ()))
    }
    places: dict[str, int] = {}
    for line in (*original.lines, *patched.lines):
        places.setdefault(line.template, len(places))
    found = []
    for template in sorted((before.keys() | after.keys()) - restless, key=places.__getitem__):
        rows, rows_after = before.get(template, []), after.get(template, [])
        if len(rows) != len(rows_after):
            found.append(_counted(template, len(rows), len(rows_after)))
            continue
        moves = _moves(base.get(template, []), [run.get(template, []) for run in others])
        found += _figures(template, rows, rows_after, moves, noise.disturbed)
    if not found and not restless and not any(_order(noise.base, run) for run in noise.runs):
        found += _order(original, patched)
    return found


def _counted(template: str, before: int, after: int) -> str:
    shown = _short(template)
    if before == 0:
        return f"prints “{shown}”, which the original does not"
    if after == 0:
        return f"does not print “{shown}”"
    return f"prints “{shown}” {after} times instead of {before}"


def _moves(base: Sequence[tuple[str, ...]], others: Sequence[Sequence[tuple[str, ...]]]) -> list[float]:
    """Return by how much each column of a template's lines moves from run to run, at most."""
    moves = [0.0] * max((len(row) for row in base), default=0)
    for run in others:
        for row, other in zip(base, run, strict=True):
            for column, (one, another) in enumerate(zip(row, other, strict=True)):
                move = abs(_value(one) - _value(another))
                moves[column] = max(moves[column], 0.0 if math.isnan(move) else move)
    return moves


def _figures(
    template: str,
    rows: Sequence[tuple[str, ...]],
    rows_after: Sequence[tuple[str, ...]],
    moves: Sequence[float],
    disturbed: float | None,
) -> list[str]:
    """The first figure that differs by more than it may; empty where none does."""
    for number, (row, row_after) in enumerate(zip(rows, rows_after, strict=True)):
        for column, (one, other) in enumerate(zip(row, row_after, strict=True)):
            moved = moves[column] if column < len(moves) else 0.0
            if one == other or (moved and disturbed is None):
                continue
            first, second = _value(one), _value(other)
            allowed, digit = SPREADS * moved, _last_digit(one)
            if disturbed is None:
                allowed = 0.0
            elif digit:
                allowed += digit + least_move(disturbed) * abs(first)
            if not (abs(first - second) <= allowed * (1 + 1e-9) or (math.isnan(first) and math.isnan(second))):
                place = f" (line {number + 1} of {len(rows)})" if len(rows) > 1 else ""
                return [f"prints {other} instead of {one} in “{_short(template)}”{place}"]
    return []


def _short(template: str) -> str:
    return template if len(template) <= 60 else f"{template[:57]}…"


def _value(text: str) -> float:
    return float(text.removesuffix("%").replace(",", ""))


def _last_digit(text: str) -> float:
    """One unit of the last printed digit; none where the number counts something."""
    mantissa, _, exponent = text.lower().removesuffix("%").partition("e")
    _, point, decimals = mantissa.partition(".")
    if not point and not text.endswith("%"):
        return 0.0
    return float(10.0 ** (int(exponent or 0) - len(decimals)))


def _order(original: Text, patched: Text) -> list[str]:
    for one, other in zip(original.lines, patched.lines, strict=False):
        if one.template != other.template:
            return [f"prints “{_short(other.template)}” before “{_short(one.template)}”"]
    return []
