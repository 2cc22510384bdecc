"""Tests a noisy series for a lasting change of its level: CUSUM on clipped residuals, both ways. Pure.

The level and the scale of the series are Huber's estimates over its first values, so that evaluations, checkpoints and
other single values that stand out move neither, and what comes periodically belongs to the level. Each further value
adds its residual, in scales and clipped, less an allowance, to a sum that never falls below zero; a sum beyond the
threshold is a change. As a residual is clipped at CLIP and the threshold lies above CLIP - ALLOWANCE, no single value
is ever taken for a change, however large.

The threshold is not tuned: it follows from how rarely the test may be wrong, and from how often values of the baseline
stand out (`threshold`, `exponent_of`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

CLIP = 3.0
"""Scales at which a residual is clipped: of normal noise one value in 370 lies beyond."""
ALLOWANCE = 1.0
"""Scales: half of the shift that the test finds soonest (Page 1954), which is therefore of two scales."""
FEWEST = 24
"""Values of the first baseline: the level is known to a fifth of the scale (1 / √24)."""
MOST = 720
"""Values of the baseline at most, the newest: an hour of blocks of five seconds."""
LAG = 12
"""The newest values, which the growing baseline leaves out with all since a sum was last zero: a change that goes on
unnoticed must not become usual."""
_GROWTH = 10
"""The baseline is learnt again whenever a tenth of it is new."""
_MOST_CORRELATION = 0.5
"""The most that noise is taken to be correlated: more is a drift, which shall be told."""
OFTEN = 0.25
"""The part of values that stand out, one in four, from which on these make a change of their own."""
_ROUNDS = 30
"""Huber's estimates move by less than CLOSE after a dozen as a rule."""
_CLOSE = 1e-3
"""Parts of a scale: far below what the estimates are uncertain by."""
_HALVINGS = 20
"""Bisections: more digits than the formulas have."""
_LEAST_EXPONENT = 0.1
"""Thresholds beyond a hundred scales would find nothing."""
_CLIPPED_SCALE = 0.986
"""The standard deviation of a normal residual clipped at CLIP."""


@dataclass(frozen=True)
class Change:
    """The level of the series changed."""

    values: int
    """How many of the newest values lie after the change: since the sum was last zero."""
    upwards: bool


def threshold(values: float, exponent: float = 2 * ALLOWANCE) -> float:
    """Return the sum, in scales, that noise exceeds once in so many `values` on average.

    Siegmund's approximation of the average run length of a CUSUM test (Sequential Analysis, 1985, eq. 2.57):
    2·(exp(e·b) - e·b - 1) / e² with b = h + 1.166, solved for h. The exponent e is twice the allowance for normal
    noise; see `exponent_of` for any other.
    """
    low, high = 0.0, 100.0 / exponent
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reach = exponent * (middle + 1.166)
        low, high = (middle, high) if 2 * (math.exp(reach) - reach - 1) / exponent**2 < values else (low, middle)
    return high


def exponent_of(residuals: Sequence[float], allowance: float) -> float:
    """Return e > 0 with mean(exp(e·(residual - allowance))) = 1, at most that of normal noise.

    Sums of such residuals exceed h with a probability of about exp(-e·h) (Lundberg): the more values stand out, the
    smaller it is. One more value at the clip is counted: what has not been seen in so few values may come yet.
    """
    steps = [residual - allowance for residual in (*residuals, CLIP)]
    low, high = 0.0, 2 * ALLOWANCE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fmean(math.exp(middle * step) for step in steps) < 1 else (low, middle)
    return max(high, _LEAST_EXPONENT)


class ChangeTest:
    """One series; `add` says when its level has changed, after which the test begins anew."""

    def __init__(self, values_per_alarm: float, least: float, level: float | None = None) -> None:
        """`values_per_alarm`: false alarms come once in so many values. `least`: the smallest shift that matters, in
        the unit of the values. `level`: the level where it is given and not learnt.
        """
        self._values_per_alarm = values_per_alarm
        self.least = least
        self._given = level
        self._values: list[float] = []
        self._sums, self._since = [0.0, 0.0], [0, 0]
        self._level: float | None = None
        self._learn_at, self._allowance = FEWEST, ALLOWANCE
        self._restart(())

    @property
    def level(self) -> float | None:
        """The level of the baseline; None while it is being learnt."""
        return self._level

    def stands_out(self, value: float) -> bool | None:
        """Whether a value lies above all that is usual; None while that is being learnt."""
        return None if self._level is None else value > self._level + CLIP * self._scale

    def add(self, value: float) -> Change | None:
        """Add the next value; returns the change that it completes."""
        self._values.append(value)
        count = len(self._values)
        if count < FEWEST:
            return None
        if self._level is None:
            self._learn(self._values)
            return None
        settled = count - max(LAG, *self._since)
        if settled >= self._learn_at:
            self._learn(self._values[max(0, settled - MOST) : settled])
            self._learn_at = settled + max(1, self._learnt // _GROWTH)
        if count > 3 * MOST:
            del self._values[:MOST]
            self._learn_at -= MOST
        residual = _residual(value, self._level, self._scale)
        for side, sign in enumerate((1, -1)):
            self._sums[side] = max(0.0, self._sums[side] + sign * residual - self._allowance)
            self._since[side] = self._since[side] + 1 if self._sums[side] else 0
        for side in (0, 1):
            if self._sums[side] > self._thresholds[side]:
                values = self._since[side]
                self._restart(self._values[-values:])
                return Change(values, upwards=side == 0)
        return None

    def restart(self, values: int) -> None:
        """Begin anew with the newest `values` of the series."""
        self._restart(self._values[-values:] if values else ())

    def _restart(self, values: Sequence[float]) -> None:
        self._values = list(values)
        self._level = None
        self._scale = self.least / 2
        self._learnt, self._learn_at, self._allowance = 0, FEWEST, ALLOWANCE
        self._thresholds = [math.inf, math.inf]
        self._sums, self._since = [0.0, 0.0], [0, 0]

    def _learn(self, values: Sequence[float]) -> None:
        self._learnt = len(values)
        centre, scale = huber(values)
        self._level = centre if self._given is None else self._given
        # Twice the scale is the shift that is found soonest: below the least that matters, none is looked for.
        self._scale = max(scale * _inflation(values, centre, scale), self.least / 2)
        # A level that is learnt from few values is itself uncertain: by two standard errors.
        self._allowance = ALLOWANCE + (0.0 if self._given is not None else 2 / math.sqrt(self._learnt))
        residuals = [_residual(value, centre, self._scale) for value in values]
        # Either of the two sums may be wrong.
        self._thresholds = [
            threshold(2 * self._values_per_alarm, exponent_of([sign * one for one in residuals], self._allowance))
            for sign in (1, -1)
        ]


class RateTest:
    """Whether values that stand out come more often than they did: a change that clipped residuals do not show.

    The log-likelihood ratio of OFTEN against the usual rate is added up, and the sum never falls below zero. One beyond
    log(n) comes once in n values or more seldom where the rate is as it was (Lorden, Annals of Mathematical Statistics,
    1971).
    """

    def __init__(self, values_per_alarm: float) -> None:
        self._threshold = math.log(values_per_alarm)
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._seen = self._stood_out = 0
        self._pending = [0, 0]
        """How many values, and how many that stood out, since the sum was last zero: they may lie after a change."""
        self._sum = 0.0

    def add(self, stands_out: bool) -> Change | None:
        """Add the next value; returns the change that it completes."""
        rate = (self._stood_out + 1) / (self._seen + 2)
        if self._seen >= FEWEST and 2 * rate <= OFTEN:
            self._sum += math.log(OFTEN / rate) if stands_out else math.log((1 - OFTEN) / (1 - rate))
        self._pending[0] += 1
        self._pending[1] += stands_out
        if self._sum > self._threshold:
            values = self._pending[0]
            self.restart()
            return Change(values, upwards=True)
        if self._sum <= 0:
            self._seen += self._pending[0]
            self._stood_out += self._pending[1]
            self._sum, self._pending = 0.0, [0, 0]
        return None


def huber(values: Sequence[float]) -> tuple[float, float]:
    """Return Huber's estimates of level and scale (his second proposal) of a series that may have outliers.

    The mean residual, clipped as the test clips it, is zero at this level.
    """
    level = median(values)
    scale = 1.4826 * median(abs(value - level) for value in values)
    if scale == 0:
        scale = fmean(abs(value - level) for value in values)
    for _ in range(_ROUNDS if scale else 0):
        residuals = [_residual(value, level, scale) for value in values]
        moved = fmean(residuals)
        level += scale * moved
        grown = math.sqrt(fmean(residual * residual for residual in residuals)) / _CLIPPED_SCALE
        scale *= grown
        if scale == 0 or (abs(moved) < _CLOSE and abs(grown - 1) < _CLOSE):
            break
    return level, scale


def _inflation(values: Sequence[float], level: float, scale: float) -> float:
    """Return how much wider sums of the series vary than those of independent values, from its first
    autocorrelation."""
    if scale == 0:
        return 1.0
    residuals = [_residual(value, level, scale) for value in values]
    power = sum(residual * residual for residual in residuals)
    if power == 0:
        return 1.0
    products = sum(one * after for one, after in pairwise(residuals))
    correlation = min(_MOST_CORRELATION, max(0.0, products / power))
    return math.sqrt((1 + correlation) / (1 - correlation))


def _residual(value: float, level: float, scale: float) -> float:
    return max(-CLIP, min(CLIP, (value - level) / scale))
