"""How much lengths vary, told by the middle of them, so that a few stray ones do not matter.

Steps may be of several kinds that take turns: a gradient is accumulated over two of them, every fourth one writes a
log. How the kinds differ is no noise, and what a step usually takes is the mean over one period.

    mean_uncertain_by([60, 62, 60, 62])     # how well the mean is known: the steps of each kind are alike
    usual([60, 62, 60, 62])                 # 61.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from diagnose.trace.schema import Float64, Int64

APART = 4.0
"""Steps take turns where those of one phase are this many standard deviations longer than those of another one. Of
steps that vary by chance alone, normally spread, one recording in 25 or fewer looks like that."""
LONGEST = 8
"""Steps of a period, at most."""

_NORMAL = 1.4826  # the standard deviation of a normal distribution over its median absolute deviation
_MEDIAN = 1.2533  # the standard error of a median over that of a mean, for a normal distribution
_UPPER = 0.8693  # the same over the upper quartile of absolute deviations
_OF_DIFFERENCE = math.sqrt(2)
_FEWEST_SIDES = 3  # so many values lie on one side of their median once in 2 ** 3 times
_OFTEN = 3  # a phase seen so often has a median that one stray step does not move


def standard_deviation(lengths: Int64 | Float64 | Sequence[int]) -> float:
    """Estimated from the median absolute deviation, in the unit of the lengths; NaN without any."""
    return _NORMAL * float(np.median(np.abs(np.asarray(lengths) - np.median(lengths))))


def period_of(lengths: Int64 | Float64 | Sequence[int]) -> int:
    """Return after how many steps their lengths repeat; 1 where nothing shows that they do."""
    values = np.asarray(lengths, np.float64)
    for period in range(2, min(len(values) // 2, LONGEST) + 1):
        phases = _phases(values, period)
        # Of phases seen twice only, one stray step would pass for a period: then all differences must be small.
        often = len(values) >= _OFTEN * period
        alike = _within(values, period) if often else float(_repeated(values, period).max())
        if np.ptp(phases) > APART * alike and _always_longer(values, phases):
            return period
    return 1


def common_period(*recordings: Int64 | Float64 | Sequence[int]) -> int:
    """The period of recordings that are to be compared; 1 where they do not agree on one, as what one usually takes is
    no measure of another then: a median beside the mean of a period differs by stray steps alone."""
    periods = {period_of(lengths) for lengths in recordings}
    return periods.pop() if len(periods) == 1 else 1


def usual(lengths: Int64 | Float64 | Sequence[int], period: int | None = None) -> float:
    """The median length; of steps that take turns, the mean of the medians of a period (None: as `period_of` finds it).
    NaN without any."""
    values = np.asarray(lengths, np.float64)
    return float(_phases(values, period or period_of(values)).mean()) if len(values) else math.nan


def mean_uncertain_by(lengths: Int64 | Float64 | Sequence[int]) -> float | None:
    """Return the uncertainty of the mean length: two standard errors, plus the shift that a cut last period causes.
    None for fewer than three.
    """
    values = np.asarray(lengths, np.float64)
    if len(values) < 3:
        return None
    period = period_of(values)
    shifted = 0.0
    if cut := len(values) % period:
        phases = _phases(values, period)
        shifted = abs(phases[:cut].mean() - phases.mean()) * cut / len(values)
    return 2 * _deviation(values, period) / math.sqrt(len(values)) + shifted


def usual_uncertain_by(lengths: Int64 | Float64 | Sequence[int], period: int | None = None) -> float | None:
    """Return the uncertainty of the usual length: two standard errors of the medians. None for fewer than three."""
    values = np.asarray(lengths, np.float64)
    if len(values) < 3:
        return None
    return 2 * _MEDIAN * _deviation(values, period or period_of(values)) / math.sqrt(len(values))


def median_surely(values: Int64 | Float64 | Sequence[int]) -> float | None:
    """Return a lower bound of the median behind these values, whatever their distribution: the lowest of three to five
    values, the second of six to eight and so on. It lies above the median at most once in eight times. None for fewer
    than three.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    count = len(ordered)
    if count < _FEWEST_SIDES:
        return None
    at, ways, arrangement = 0, 1, 1  # of 2 ** count arrangements, in so many no more than `at` values lie below
    while (ways + (arrangement := arrangement * (count - at) // (at + 1))) << _FEWEST_SIDES <= 1 << count:
        at, ways = at + 1, ways + arrangement
    return float(ordered[at])


def _always_longer(values: Float64, phases: Float64) -> bool:
    """Whether the longest phase is long nearly each time: stray steps that happen to meet in one phase are not."""
    longest = values[int(phases.argmax()) :: len(phases)]
    return bool(np.quantile(longest, 0.25, method="lower") > phases.min() + np.ptp(phases) / 2)


def _deviation(values: Float64, period: int) -> float:
    """Return how much the steps of one kind vary."""
    return _within(values, period) if period > 1 else standard_deviation(values)


def _within(values: Float64, period: int) -> float:
    """The standard deviation of steps of one phase, from the upper quartile of what lies between neighbours: of steps
    of two kinds in no order, every other one is like the one a period before."""
    return _UPPER * float(np.quantile(_repeated(values, period), 0.75)) / _OF_DIFFERENCE


def _repeated(values: Float64, period: int) -> Float64:
    """Return by how much each step differs from the one a period before."""
    return np.abs(values[period:] - values[:-period])


def _phases(values: Float64, period: int) -> Float64:
    """The median of the steps at each place of a period."""
    return np.asarray([np.median(values[at::period]) for at in range(period)], np.float64)
