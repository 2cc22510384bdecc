"""Whether a quantity grows from step to step, and by how much: a trend that noise and a saturating start do not make.

    growth(values)                  # one value per step, in order → growth per step, or None
    growth_between(steps, values)   # values that were read at some steps only

A few values (a trace of some steps) must all rise, by about as much. Many (a step log) are cut into blocks whose least
values must rise; what grew only while the run warmed up does not count.
"""

from __future__ import annotations

import numpy as np

from diagnose.trace.schema import Int64

FEWEST = 4
"""Values: three rises in a row by about as much are no accident; two may be."""
MANY = 32
"""Values from which on single ones may deviate."""
_ALIKE = 0.5
"""The least of a few rises over the largest: a first step that allocates what later ones keep stays below it."""
_WARM_UP = 0.25
_BLOCKS = 8
_RISING = 6
"""How many of the seven steps between blocks must rise."""


def growth(values: Int64) -> float | None:
    """Return by how much a quantity grows per step; None where it does not, or where too few steps were seen."""
    count = len(values)
    if count < FEWEST:
        return None
    if count < MANY:
        rises = np.diff(values)
        if rises.min() <= 0 or rises.min() < _ALIKE * rises.max():
            return None
        return float(np.median(rises))
    settled = values[int(count * _WARM_UP) :]
    length = len(settled) // _BLOCKS
    blocks = settled[: length * _BLOCKS].reshape(_BLOCKS, length)
    least = blocks.min(axis=1)
    rises = np.diff(least)
    usual = float(np.median(rises))
    # A cache that fills up rises ever less: the last rises must keep up with the others.
    goes_on = float(rises[-2:].mean()) >= _ALIKE * usual
    if usual <= 0 or (rises > 0).sum() < _RISING or not goes_on:
        return None
    return usual / length


def growth_between(steps: Int64, values: Int64) -> float | None:
    """The growth per step of values that were read at the ends of some steps, in order."""
    if len(values) < FEWEST:
        return None
    if len(values) >= MANY:
        rise = growth(values)
        return None if rise is None else rise * (len(steps) - 1) / float(steps[-1] - steps[0])
    rates = np.diff(values) / np.diff(steps)
    return growth(np.concatenate(([0], np.rint(np.cumsum(rates)))).astype(np.int64))
