"""Finds the best setting of a knob: a coarse sweep, half the distance around the best, a run-off of what is close.

Every measurement starts a process, so few are made. Settings on a scale (numbers of workers, sizes of a micro-batch)
are tried at every second or fourth place, then at half that distance on both sides of the best; settings that are no
scale (modes of compilation) are all tried. Where the intervals cannot tell the best from others, the better half of
those is measured again with twice the pairs. A setting that fails has lost, and ends nothing but itself. Knows nothing
of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from diagnose.model import Interval, Scalar

NEAR_BEST = 0.02
"""The share by which a setting's step may exceed the shortest: the cheapest such setting is taken."""
_ALL = 4
"""The number of settings up to which all are tried one by one."""
_NOTHING = Interval(0.0, 0.0, 0.0)

OnSetting = Callable[[int, int, Interval | None], None]
"""Told of each setting of a knob: its number, the number of the one it was measured against, and how much less time it
takes than that one; None where it gave no answer."""
Compare = Callable[[int, int, int], Interval | None]
"""The saving of a setting against the yardstick's, in so many pairs: called with the yardstick's number, the setting's,
and the pairs. None where the setting gave no answer. Raises YardstickFailed."""


class ReferenceSettingFailed(Exception):
    """The setting that the others are measured against does not run."""


@dataclass
class KnobSweep:
    """The settings of one knob, cheapest first."""

    count: int
    scale: bool
    """Whether they are values of one number in rising order."""
    compare: Compare
    on_try: OnSetting
    pairs: int
    """Pairs per setting in the coarse sweep; a run-off has twice as many."""
    most_pairs: int
    """No run-off has more."""
    yardstick: int = 0
    """The first that runs."""
    savings: dict[int, Interval] = field(default_factory=lambda: {0: _NOTHING})
    """Against the yardstick, which itself has none."""
    lost: set[int] = field(default_factory=set)
    """The settings that gave no answer."""

    def ranking(self) -> list[int]:
        """The settings that ran, the one to take first; where none did, the last that was asked to."""
        while (number := self._next()) is not None:
            self._measure(number, self.pairs)
        pairs = 2 * self.pairs
        while pairs <= self.most_pairs and len(rivals := close(self.savings)) > 1:
            for number in rivals[: max(2, len(rivals) // 2)]:
                if number != self.yardstick:
                    self._measure(number, pairs)
            pairs *= 2
        best = cheapest_near_best(self.savings)
        others = sorted(self.savings.keys() - {best}, key=lambda number: -self.savings[number].estimate)
        return [best, *others]

    def _next(self) -> int | None:
        known = self.savings.keys() | self.lost
        return next_setting(self.count, self.scale, known, cheapest_near_best(self.savings))

    def _measure(self, number: int, pairs: int) -> None:
        try:
            saving = self.compare(self.yardstick, number, pairs)
        except ReferenceSettingFailed:
            self.on_try(self.yardstick, number, None)
            self.lost.add(self.yardstick)
            self.yardstick, self.savings = number, {number: _NOTHING}
            return
        self.on_try(number, self.yardstick, saving)
        if saving is None:
            self.lost.add(number)
            self.savings.pop(number, None)
        else:
            self.savings[number] = saving


def is_scale(settings: Sequence[Mapping[str, Scalar]]) -> bool:
    """Whether settings differ in one number alone, which rises."""
    names = {name for setting in settings for name in setting}
    varying = [name for name in names if len({repr(setting.get(name)) for setting in settings}) > 1]
    if len(varying) != 1:
        return False
    values = [setting.get(varying[0]) for setting in settings]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and numbers == sorted(numbers)


def next_setting(count: int, scale: bool, known: set[int], best: int) -> int | None:
    """The setting to measure next; None when there is nothing left to learn."""
    distance = 1
    while scale and count > _ALL * distance:
        distance *= 2
    grid: list[int] = sorted({*range(0, count, distance), count - 1})
    while True:
        left = [number for number in grid if number not in known]
        if left:
            return left[0]
        distance //= 2
        if distance == 0:
            return None
        grid = [number for number in (best - distance, best + distance) if 0 <= number < count]


def cheapest_near_best(savings: Mapping[int, Interval]) -> int:
    """The first whose step is at most `NEAR_BEST` longer than that of the best."""
    shortest = min(1 - saving.estimate for saving in savings.values())
    return min(number for number, saving in savings.items() if 1 - saving.estimate <= shortest * (1 + NEAR_BEST))


def close(savings: Mapping[int, Interval]) -> list[int]:
    """The best, then those whose step may be shorter than its by more than `NEAR_BEST`; by estimate."""
    order = sorted(savings, key=lambda number: -savings[number].estimate)
    longest = 1 - savings[order[0]].low
    return [order[0], *(number for number in order[1:] if 1 - savings[number].high < longest * (1 - NEAR_BEST))]
