"""Kernels below the device's ceilings: operations per second over operations per byte, both axes logarithmic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diagnose.model import KernelRow, Roof, StepProfile
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.vocabulary import Look
from diagnose.units import NS_PER_S, format_share

WIDTH, HEIGHT = 900, 400
"""The size of the picture, in its own units."""
LEFT, BOTTOM = 84, 44
"""Room for the words of the axes."""
_TOP, _RIGHT = 14, 16
_MOST_POINTS = 80
_SMALLEST, _LARGEST = 3.5, 16.0
"""Radius of a point: its area is its kernel's time."""
_TERA = 1e12


@dataclass(frozen=True)
class Point:
    """One kernel."""

    x: float
    y: float
    radius: float
    look: Look
    words: str


@dataclass(frozen=True)
class Ceiling:
    """A line that no kernel is above, unless its bytes come from a cache."""

    points: str
    words: str
    x: float
    """The position at which the words end."""
    y: float


@dataclass(frozen=True)
class Tick:
    """A line of the grid."""

    at: float
    words: str


@dataclass(frozen=True)
class RooflinePlot:
    """The picture, and what it leaves out."""

    points: tuple[Point, ...]
    ceilings: tuple[Ceiling, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    looks: tuple[Look, ...]
    shown: float
    """The share of the tables' device time that the points stand for."""
    source: str


def roofline_plot(profile: StepProfile) -> RooflinePlot | None:
    """None where the ceilings of the device are unknown, or nothing is known of its kernels."""
    rows = [row for row in profile.kernels if row.flops and row.moved_bytes and row.known_ns][:_MOST_POINTS]
    if profile.roof is None or not rows:
        return None
    roof = profile.roof
    used = {row.format for row in rows if row.format is not None and row.format in roof.flops_per_s}
    formats = sorted(used or {"fp32"} & roof.flops_per_s.keys())
    axes = _Axes.around(rows, roof, [roof.flops_per_s[form] for form in formats])
    total = sum(row.total_ns for row in profile.kernels)
    most = max(row.known_ns for row in rows)
    points = tuple(_point(row, most, axes, profile) for row in rows)
    highest = max((roof.flops_per_s[form] for form in formats), default=0.0)
    ceilings = tuple(_ceiling(form, roof, axes, below=roof.flops_per_s[form] < highest) for form in formats)
    return RooflinePlot(
        points=tuple(reversed(points)),  # small ones are drawn over large ones
        ceilings=(*ceilings, _slope(roof, axes)),
        across=tuple(Tick(axes.x(10.0**power), f"{10.0**power:g}") for power in axes.powers_across),
        up=tuple(Tick(axes.y(10.0**power), _rate(10.0**power)) for power in axes.powers_up),
        looks=tuple({point.look: None for point in points}),
        shown=sum(row.known_ns for row in rows) / max(total, 1),
        source=roof.source,
    )


@dataclass(frozen=True)
class _Axes:
    """Powers of ten at the edges."""

    left: float
    right: float
    low: float
    high: float

    @classmethod
    def around(cls, rows: list[KernelRow], roof: Roof, ceilings: list[float]) -> _Axes:
        across = [math.log10(_intensity(row)) for row in rows]
        up = [math.log10(_speed(row)) for row in rows]
        ridges = [math.log10(ceiling / roof.bytes_per_s) for ceiling in ceilings]
        highest = max([*up, *(math.log10(ceiling) for ceiling in ceilings)])
        lowest = max(min(up), highest - 7)
        return cls(min([*across, *ridges]) - 0.3, max([*across, *ridges]) + 0.4, lowest - 0.3, highest + 0.25)

    def x(self, intensity: float) -> float:
        part = (math.log10(intensity) - self.left) / (self.right - self.left)
        return round(LEFT + part * (WIDTH - LEFT - _RIGHT), 1)

    def y(self, speed: float) -> float:
        part = (math.log10(speed) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - max(part, 0.0) * (HEIGHT - BOTTOM - _TOP), 1)

    @property
    def powers_across(self) -> range:
        return range(math.ceil(self.left), math.floor(self.right) + 1)

    @property
    def powers_up(self) -> range:
        return range(math.ceil(self.low), math.floor(self.high) + 1)


def _point(row: KernelRow, most_ns: int, axes: _Axes, profile: StepProfile) -> Point:
    speed, intensity = _speed(row), _intensity(row)
    words = [
        short_kernel(row.name),
        f"{_rate(speed)} at {intensity:.3g} operations per byte",
        f"{format_share(row.total_ns / max(profile.total_ns, 1))} of the step",
    ]
    if row.format:
        words.insert(1, row.format)
    return Point(
        axes.x(intensity),
        axes.y(speed),
        round(max(_SMALLEST, _LARGEST * math.sqrt(row.known_ns / most_ns)), 1),
        span_look(row.kind),
        "; ".join(words),
    )


def _ceiling(form: str, roof: Roof, axes: _Axes, below: bool) -> Ceiling:
    """A horizontal line; its words stand above it, or below where a higher ceiling may have the room above."""
    speed = roof.flops_per_s[form]
    begin, end = axes.x(speed / roof.bytes_per_s), axes.x(10.0**axes.right)
    height = axes.y(speed)
    return Ceiling(
        f"{begin},{height} {end},{height}", f"{form}: {_rate(speed)}", end - 4, height + 14 if below else height - 5
    )


def _slope(roof: Roof, axes: _Axes) -> Ceiling:
    """Return what the memory allows, up to the upper edge."""
    left = max(axes.left, axes.low - math.log10(roof.bytes_per_s))
    right = min(axes.right, axes.high - math.log10(roof.bytes_per_s))
    begin, named, end = (
        (axes.x(10.0**at), axes.y(10.0**at * roof.bytes_per_s)) for at in (left, left + 0.7 * (right - left), right)
    )
    words = f"memory: {roof.bytes_per_s / _TERA:.3g} TB/s"
    return Ceiling(f"{begin[0]},{begin[1]} {end[0]},{end[1]}", words, named[0] - 10, named[1] - 4)


def _intensity(row: KernelRow) -> float:
    return (row.flops or 0) / max(row.moved_bytes or 0, 1)


def _speed(row: KernelRow) -> float:
    return (row.flops or 0) / row.known_ns * NS_PER_S


def _rate(speed: float) -> str:
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if speed >= size:
            return f"{speed / size:.3g} {unit}FLOP/s"
    return f"{speed:.3g} FLOP/s"
