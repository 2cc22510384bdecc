"""What the device and the host are doing while steps run: a line of gauges from the newest counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from diagnose.model import Facts
from diagnose.report.style.styled_text import styled
from diagnose.report.style.vocabulary import CLASSES, MUTED
from diagnose.session import State
from diagnose.tui.drawing.chart import meter
from diagnose.units import format_bytes

_INDENT = 9
_WIDEST, _NARROWEST = 14, 4


@dataclass(frozen=True)
class Gauge:
    """One value and how full it is."""

    label: str
    reading: str
    share: float | None
    """None where it is not known what full would be."""
    colour: str


def gauges(state: State, rank: int, width: int) -> list[Text]:
    """One line, or none where no counter was read."""
    facts = state.facts.get(rank, Facts())
    shown = _gauges(state.counters.get(rank, {}), facts)
    if not shown:
        return []
    words = max(len(gauge.label) + len(gauge.reading) + 5 for gauge in shown)
    track = min((width - _INDENT) // len(shown) - words, _WIDEST)
    line = styled(" " * _INDENT)
    for gauge in shown:
        line.append(f"{gauge.label} ", MUTED)
        if track >= _NARROWEST and gauge.share is not None:
            line.append_text(meter(gauge.share, track, gauge.colour)).append(" ")
        line.append(gauge.reading).append("  ")
    line.rstrip()
    line.truncate(width)
    return [line]


def _gauges(values: Mapping[str, float], facts: Facts) -> list[Gauge]:
    compute, memory, python = (CLASSES[name].colour for name in ("compute", "exposed_copy", "python"))
    found = []
    # NVML's utilisation is the time in which any kernel ran; GPM's SM activity says how much of the device did.
    if "gpu.sm_activity" in values:
        found.append(_percent("SMs", values["gpu.sm_activity"], compute))
    elif "gpu.utilization" in values:
        found.append(_percent("GPU busy", values["gpu.utilization"], compute))
    if "gpu.dram_activity" in values:
        found.append(_percent("DRAM", values["gpu.dram_activity"], memory))
    if "gpu.memory_used_bytes" in values:
        used, whole = values["gpu.memory_used_bytes"], facts.device_memory_bytes
        reading = _of(format_bytes(used), format_bytes(whole)) if whole else format_bytes(used)
        found.append(Gauge("memory", reading, used / whole if whole else None, memory))
    if "host.cpu" in values:
        cores, whole = values["host.cpu"] / 100, facts.cpu_count
        reading = f"{cores:.1f} of {whole} cores" if whole else f"{cores:.1f} cores"
        found.append(Gauge("CPU", reading, cores / whole if whole else None, python))
    return found


def _of(part: str, whole: str) -> str:
    """`11.0 of 140 GiB`: a unit that both have is said once."""
    unit = whole.rpartition(" ")[2]
    return f"{part.removesuffix(f' {unit}')} of {whole}"


def _percent(label: str, percent: float, colour: str) -> Gauge:
    return Gauge(label, f"{percent:.0f} %", percent / 100, colour)
