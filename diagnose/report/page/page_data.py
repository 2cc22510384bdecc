"""The data of the page's timeline and of its picture of memory over time."""

from __future__ import annotations

import json
from dataclasses import dataclass

from diagnose.model import Finding, MemoryTimeline, Timeline
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.span_looks import span_look
from diagnose.report.style.vocabulary import CLASSES, MEMORY, Look
from diagnose.units import format_bytes, printable

WIDTH, HEIGHT = 1000, 180
"""The size of the picture of memory, in its own units."""
_LONGEST_LABEL = 300


def timeline_json(timeline: Timeline) -> str:
    """JSON that may stand in an HTML page: no `<` begins a tag there."""
    labels = [printable(label)[:_LONGEST_LABEL] for label in timeline.labels]
    data = {
        "steps": timeline.steps_ns,
        "first": timeline.first_step,
        "labels": labels,
        "shown": [CLASSES[label].label if label in CLASSES else short_kernel(label) for label in labels],
        "looks": [{"label": span_look(kind).label, "colour": span_look(kind).colour} for kind in timeline.looks],
        "lanes": [
            {
                "name": printable(lane.name),
                "start": lane.start_ns,
                "length": lane.length_ns,
                "label": lane.label,
                "look": lane.look,
            }
            for lane in timeline.lanes
        ],
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def looks_of(timeline: Timeline) -> list[Look]:
    """The kinds of spans, for the legend."""
    return [span_look(kind) for kind in timeline.looks]


def example_of(finding: Finding, timeline: Timeline | None) -> tuple[int, int] | None:
    """Return where on the timeline a finding's longest stretch lies; None where it is not among the steps shown."""
    if timeline is None or finding.example_ns is None:
        return None
    begin, end = (moment - timeline.begin_ns for moment in finding.example_ns)
    return (begin, end) if 0 <= begin < end <= timeline.steps_ns[-1] else None


@dataclass(frozen=True)
class Area:
    """One category of memory over time, stacked on those before."""

    look: Look
    points: str
    """The points of an SVG polygon."""


@dataclass(frozen=True)
class MemoryPicture:
    """Memory over time."""

    areas: tuple[Area, ...]
    most: str


def memory_picture(timeline: MemoryTimeline | None) -> MemoryPicture | None:
    """Stacked areas; None where no history was recorded."""
    if timeline is None:
        return None
    names = [name for name in MEMORY if name in timeline.categories]
    moments = len(next(iter(timeline.categories.values()), ()))
    if moments < 2 or not names:
        return None
    most = max(sum(timeline.categories[name][at] for name in names) for at in range(moments))
    if most <= 0:
        return None
    times = timeline.time_ns or tuple(range(moments))
    span = max(times[-1] - times[0], 1)
    across = [(moment - times[0]) / span * WIDTH for moment in times]
    below = [0] * moments
    areas = []
    for name in names:
        above = [low + size for low, size in zip(below, timeline.categories[name], strict=True)]
        edge = [*zip(across, above, strict=True), *reversed(list(zip(across, below, strict=True)))]
        points = " ".join(f"{x:.1f},{HEIGHT * (1 - size / most):.1f}" for x, size in edge)
        areas.append(Area(MEMORY[name], points))
        below = above
    return MemoryPicture(tuple(areas), format_bytes(most))
