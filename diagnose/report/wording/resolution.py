"""The machine's resolution as a share of a step: the original measured against itself.

The program is the same on both sides, so a saving that means nothing is a loss that means nothing with the sides
swapped. Of a percent the two are alike; beside a saving of half a step stands a loss of a whole one.
"""

from __future__ import annotations

from diagnose.units import format_share, swap_sides


def band(resolution: float) -> tuple[float, float]:
    """The loss (negative) and the saving of which nothing can be told yet."""
    return (swap_sides(resolution) if resolution < 1 else -resolution), resolution


def resolution_in_words(resolution: float) -> str:
    """The resolution in words: `±1.0 %`, or `−61 % … +38 %` where the ends differ."""
    loss, saving = (format_share(abs(end)) for end in band(resolution))
    return f"±{saving}" if loss == saving else f"−{loss} … +{saving}"
