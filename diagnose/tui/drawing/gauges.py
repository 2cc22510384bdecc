"""Gauges of device and host activity while steps run, from the counters, with their history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from diagnose.model import Facts
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import CLASSES, MUTED
from diagnose.session import State
from diagnose.tui.drawing.chart import meter, sparkline
from diagnose.units import format_bytes

_INDENT = 9
_WIDEST, _NARROWEST = 14, 4
_LABEL, _READING = 10, 20
_LEAST_HISTORY, _MOST_HISTORY = 8, 60


@dataclass(frozen=True)
class Gauge:
    """One value and how full it is."""

    counter: str
    label: str
    reading: str
    share: float | None
    """None where it is not known what full would be."""
    colour: str
    full: float | None
    """The counter's value that would be full."""


def gauges(state: State, rank: int, width: int) -> list[Text]:
    """One line, or none where no counter was read."""
    shown = _shown(state, rank)
    if not shown:
        return []
    words = max(len(gauge.label) + len(gauge.reading) + 5 for gauge in shown)
    track = min((width - _INDENT) // len(shown) - words, _WIDEST)
    line = styled(" " * _INDENT)
    for gauge in shown:
        if len(line) > _INDENT and len(line) + len(gauge.label) + len(gauge.reading) + 1 > width:
            break
        line.append(f"{gauge.label} ", MUTED)
        if track >= _NARROWEST and gauge.share is not None:
            line.append_text(meter(gauge.share, track, gauge.colour)).append(" ")
        line.append(gauge.reading).append("  ")
    line.rstrip()
    line.truncate(width)
    return [line]


def gauge_histories(state: State, rank: int, width: int) -> list[Text]:
    """Two gauges a line, each with its newest readings as a sparkline; as `gauges` where there is no history yet."""
    history = state.counter_history.get(rank, {})
    shown = _shown(state, rank)
    half = (width - _INDENT) // 2
    room = min(half - _LABEL - _READING - 2, _MOST_HISTORY)
    longest = max((len(history.get(gauge.counter, ())) for gauge in shown), default=0)
    if longest < 2 or room < _LEAST_HISTORY:
        return gauges(state, rank, width)
    cells = [_with_history(gauge, history.get(gauge.counter, ()), room) for gauge in shown]
    lines = []
    for left, right in zip(cells[::2], [*cells[1::2], Text()], strict=False):
        lines.append(styled(" " * _INDENT).append_text(left).append(" " * (half - len(left))).append_text(right))
        lines[-1].rstrip()
    return lines


def _with_history(gauge: Gauge, readings: Sequence[float], room: int) -> Text:
    line = styled(f"{gauge.label:<{_LABEL}}", MUTED)
    line.append_text(sparkline(readings, gauge.full, room, gauge.colour))
    return line.append(f" {gauge.reading}")


def _shown(state: State, rank: int) -> list[Gauge]:
    return _gauges(state.counters.get(rank, {}), state.facts.get(rank, Facts()))


def _gauges(values: Mapping[str, float], facts: Facts) -> list[Gauge]:
    compute, memory, python = (CLASSES[name].colour for name in ("compute", "exposed_copy", "python"))
    found = []
    # NVML's utilisation is the time in which any kernel ran; GPM's SM activity says how much of the device did.
    if "gpu.sm_activity" in values:
        found.append(_percent("gpu.sm_activity", "SMs", values, compute))
    elif "gpu.utilization" in values:
        found.append(_percent("gpu.utilization", "GPU busy", values, compute))
    if "gpu.dram_activity" in values:
        found.append(_percent("gpu.dram_activity", "DRAM", values, memory))
    if "gpu.memory_used_bytes" in values:
        used, whole = values["gpu.memory_used_bytes"], facts.device_memory_bytes
        reading = _of(format_bytes(used), format_bytes(whole)) if whole else format_bytes(used)
        share = used / whole if whole else None
        found.append(Gauge("gpu.memory_used_bytes", "memory", reading, share, memory, whole))
    if "host.cpu" in values:
        cores, whole = values["host.cpu"] / 100, facts.cpu_count
        reading = f"{cores:.1f} of {whole} cores" if whole else f"{cores:.1f} cores"
        full = 100.0 * whole if whole else None
        found.append(Gauge("host.cpu", "CPU", reading, cores / whole if whole else None, python, full))
    return found


def _of(part: str, whole: str) -> str:
    """`11.0 of 140 GiB`: a unit that both have is said once."""
    unit = whole.rpartition(" ")[2]
    return f"{part.removesuffix(f' {unit}')} of {whole}"


def _percent(counter: str, label: str, values: Mapping[str, float], colour: str) -> Gauge:
    percent = values[counter]
    return Gauge(counter, label, f"{percent:.0f} %", percent / 100, colour, 100.0)
