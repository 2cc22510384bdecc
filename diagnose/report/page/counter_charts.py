"""Counters over the run as small charts."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.model import CounterSeries
from diagnose.units import counter_unit, format_bytes, format_ns

WIDTH, HEIGHT = 300, 60
"""The size of a chart, in its own units."""
_OF_HOST = {
    "host.cpu": ("CPU of the run", "% of a core"),
    "host.process_cpu": ("CPU of the training process", "% of a core"),
    "host.workers_cpu": ("CPU of loader workers and other children", "% of a core"),
    "host.busiest_worker_cpu": ("CPU of the busiest child", "% of a core"),
    "host.others_cpu": ("CPU of other programs", "% of a core"),
    "host.queued": ("time ready without a core", "%"),
    "host.load": ("load average of the machine", ""),
    "host.workers": ("loader workers and other children", ""),
    "host.rss_bytes": ("resident memory of the run", ""),
    "host.process_rss_bytes": ("resident memory of the training process", ""),
}
"""Title and unit of the counters that `diagnose.collect.host` reads."""


@dataclass(frozen=True)
class CounterChart:
    """One counter."""

    title: str
    low: str
    high: str
    points: str
    """The points of an SVG polyline; the lower edge is the smallest value."""


@dataclass(frozen=True)
class CounterCharts:
    """All of a run."""

    charts: tuple[CounterChart, ...]
    """The counters that changed."""
    constant: tuple[str, ...]
    """The counters that read the same from begin to end, each with its value."""
    span: str
    """How long the run was read."""


def counter_charts(series: tuple[CounterSeries, ...]) -> CounterCharts | None:
    """None where no counter was read often enough."""
    if not series:
        return None
    end_ns = max(max(one.time_ns[-1] for one in series), 1)
    several = len({one.device for one in series if one.device >= 0}) > 1
    charts = [_chart(one, end_ns, several) for one in series]
    return CounterCharts(
        tuple(one for one in charts if one.low != one.high),
        tuple(f"{one.title} {one.low}" for one in charts if one.low == one.high),
        format_ns(end_ns),
    )


def _chart(one: CounterSeries, end_ns: int, several_devices: bool) -> CounterChart:
    low, high = min(one.value), max(one.value)
    points = " ".join(
        f"{time / end_ns * WIDTH:.1f},{HEIGHT * (1 - (value - low) / ((high - low) or 1)):.1f}"
        for time, value in zip(one.time_ns, one.value, strict=True)
    )
    where = f" of device {one.device}" if several_devices and one.device >= 0 else ""
    title, _ = _OF_HOST.get(one.name, (one.name, ""))
    return CounterChart(title + where, _shown(one, low), _shown(one, high), points)


def _shown(one: CounterSeries, value: float) -> str:
    if one.name.endswith("_bytes"):
        return format_bytes(round(value))
    unit = _OF_HOST[one.name][1] if one.name in _OF_HOST else counter_unit(one.name)
    return f"{value:.4g} {unit}" if unit else f"{value:.4g}"
