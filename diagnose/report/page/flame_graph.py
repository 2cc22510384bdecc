"""The sampled stacks of the training thread as a flame graph: the outermost call above, as wide as its samples."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnose.model import Place, SampledCall
from diagnose.report.style.paths import place
from diagnose.units import format_share

WIDTH = 1000
"""The width of the picture, in its own units."""
ROW = 18
_LETTER = 6.3
"""Width of a letter, in the same units."""
_NARROWEST = 0.6
"""What is narrower is not drawn."""
_OWN, _TORCH, _OTHER = "#e0a458", "#7fb3cf", "#a9b4bb"
COLOURS = {"your own files": _OWN, "torch": _TORCH, "other libraries": _OTHER}
"""The colours of frames, by whose file they are in."""
_IN_TORCH = re.compile(r"[/\\]torch[/\\]")


@dataclass(frozen=True)
class Box:
    """One call."""

    x: float
    y: int
    width: float
    colour: str
    label: str
    """The function's name and line, as far as there is room."""
    words: str


@dataclass(frozen=True)
class FlameGraph:
    """The boxes, and how high they are together."""

    boxes: tuple[Box, ...]
    height: int
    samples: int


def flame_graph(calls: tuple[SampledCall, ...], root: str | None) -> FlameGraph | None:
    """None where no stacks were sampled; `root` is the folder that paths are shown relative to."""
    samples = sum(call.samples for call in calls if call.depth == 0)
    if not samples:
        return None
    boxes = tuple(_box(call, samples, root) for call in calls if call.samples / samples * WIDTH >= _NARROWEST)
    return FlameGraph(boxes, max(box.y for box in boxes) + ROW, samples)


def _box(call: SampledCall, samples: int, root: str | None) -> Box:
    width = call.samples / samples * WIDTH
    room = int((width - 6) / _LETTER)
    name = f"{call.function}:{call.line}"
    label = name if len(name) <= room else name[: max(room - 1, 0)] + "…"
    where = place(Place(call.file, call.line), root)
    return Box(
        round(call.begin / samples * WIDTH, 1),
        call.depth * ROW,
        round(width, 1),
        _OWN if call.owned else _TORCH if _IN_TORCH.search(call.file) else _OTHER,
        label if room >= 3 else "",
        f"{call.function}, {where}: {format_share(call.samples / samples)}, {call.samples} of {samples} samples",
    )
