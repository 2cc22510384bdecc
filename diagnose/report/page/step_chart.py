"""How long the steps of a run took, one after the other, as the points of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from diagnose.session import RankSteps

WIDTH, HEIGHT = 720, 110
"""The size of the picture, in its own units."""
_FEWEST = 8  # fewer steps are a row of figures, no course
_COLUMNS = 360
_CEILING = 2.5  # times the median: what is longer is drawn at the upper edge, so that one long step hides no others


@dataclass(frozen=True)
class StepChart:
    """The course of a rank's step time."""

    rank: int
    count: int
    median_ns: int
    longest_ns: int
    ceiling_ns: int
    """The upper edge of the picture."""
    above: int
    """Steps that are longer than that."""
    points: str
    """`x,y` of each column, for an SVG polyline; of several steps in a column, the longest."""
    median_y: float


def step_chart(steps: Mapping[int, RankSteps]) -> StepChart | None:
    """The chart of the rank whose median step is longest; None where no rank has taken enough steps."""
    taken = {rank: one.lengths_ns for rank, one in steps.items()}
    taken = {rank: lengths for rank, lengths in taken.items() if len(lengths) >= _FEWEST and min(lengths) >= 0}
    if not taken:
        return None
    rank, lengths = max(taken.items(), key=lambda item: median_low(item[1]))
    median_ns, longest_ns = median_low(lengths), max(lengths)
    ceiling_ns = max(min(longest_ns, round(_CEILING * median_ns)), 1)
    columns = min(len(lengths), _COLUMNS)
    tops = [max(lengths[at * len(lengths) // columns : (at + 1) * len(lengths) // columns]) for at in range(columns)]
    points = " ".join(f"{at * WIDTH / (columns - 1):.1f},{_y(top, ceiling_ns):.1f}" for at, top in enumerate(tops))
    above = sum(length > ceiling_ns for length in lengths)
    return StepChart(rank, len(lengths), median_ns, longest_ns, ceiling_ns, above, points, _y(median_ns, ceiling_ns))


def _y(length_ns: int, ceiling_ns: int) -> float:
    return HEIGHT - HEIGHT * min(length_ns, ceiling_ns) / ceiling_ns
