"""Steps of a recording that marks none: the period with which its sequence of kernels repeats."""

from __future__ import annotations

import numpy as np

from diagnose.trace.schema import Int32, Int64

_FEWEST_PERIODS = 3
_SAME = 0.98  # of the kernels must have their like one period on
_REGULAR = 0.9  # of a name's distances must be equal for it to propose a period
_SINGULAR = 0.002  # of the kernels may have a name that does not come in every period
_SHORTEST = 4  # kernels: fewer say nothing about a step


def period_of(names: Int32) -> int | None:
    """After how many kernels the sequence repeats, or None.

    A name that comes at regular distances proposes its distance. The period under which most kernels repeat wins, the
    shortest of equals. Layers repeat too, but what comes before and after them does not: a period is refused if some
    kernels are too rare to come once in each.
    """
    if len(names) < _FEWEST_PERIODS * _SHORTEST:
        return None
    candidates = set()
    order = np.argsort(names, kind="stable")
    borders = np.flatnonzero(np.diff(names[order])) + 1
    for places in np.split(order, borders):
        if len(places) < _FEWEST_PERIODS:
            continue
        distances = np.diff(places)
        common = int(np.median(distances))
        if common >= _SHORTEST and (distances == common).mean() >= _REGULAR:
            candidates.add(common)
    best: tuple[float, int] | None = None
    _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    for period in sorted(candidates):
        if period * _FEWEST_PERIODS > len(names):
            continue
        if (counts[inverse] < len(names) // period - 1).mean() > _SINGULAR:
            continue
        same = float((names[period:] == names[:-period]).mean())
        if same >= _SAME and (best is None or same > best[0] + 1e-9):
            best = (same, period)
    return None if best is None else best[1]


def period_starts(names: Int32, start_ns: Int64) -> Int64 | None:
    """When each period begins, from the first kernel on; the last one only closes the period before it."""
    period = period_of(names)
    return None if period is None else start_ns[::period]
