"""Which settings of a knob are measured, and which is taken, with savings that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from diagnose.model import Interval
from diagnose.trial.ab.knob_search import KnobSweep, ReferenceSettingFailed, cheapest_near_best, close, is_scale


@dataclass
class Knob:
    """Steps by setting, in ms; None: does not run."""

    steps: Sequence[float | None]
    half: float = 0.001
    """Half-width of an interval of 4 pairs; it shrinks with their number."""
    scale: bool = True
    asked: list[tuple[int, int, int]] = field(default_factory=list)
    """Yardstick, setting, pairs."""
    told: list[tuple[int, int, bool]] = field(default_factory=list)

    def compare(self, yardstick: int, number: int, pairs: int) -> Interval | None:
        self.asked.append((yardstick, number, pairs))
        before, after = self.steps[yardstick], self.steps[number]
        if before is None:
            raise ReferenceSettingFailed
        if after is None:
            return None
        saving, half = 1 - after / before, self.half * 4 / pairs
        return Interval(saving, saving - half, saving + half)

    def best(self, most_pairs: int = 10) -> int:
        def on_try(number: int, against: int, saving: Interval | None) -> None:
            self.told.append((number, against, saving is not None))

        return KnobSweep(len(self.steps), self.scale, self.compare, on_try, 4, most_pairs).ranking()[0]

    @property
    def measured(self) -> list[int]:
        return [number for _, number, _ in self.asked]


def test_a_few_settings_are_all_measured_against_the_first() -> None:
    knob = Knob([20, 15, 10, 12])
    assert knob.best() == 2
    assert knob.asked == [(0, 1, 4), (0, 2, 4), (0, 3, 4)]


def test_many_settings_on_a_scale_are_swept_coarsely_then_around_the_best() -> None:
    knob = Knob([80, 40, 20, 10, 10.1, 10.2, 12, 14])
    assert knob.best() == 3
    # Every second and the last; 4 is the best of those, then 3 beside it, which has 2 and 4 for neighbours.
    assert knob.measured == [2, 4, 6, 7, 3]
    most = Knob([100 - at for at in range(16)])
    assert most.best() == 14
    assert most.measured == [4, 8, 12, 15, 13, 14]


def test_settings_that_are_no_scale_are_all_measured() -> None:
    knob = Knob([20, 19, 18, 17, 5, 16], scale=False)
    assert knob.best() == 4
    assert knob.measured == [1, 2, 3, 4, 5]


def test_the_cheapest_is_taken_whose_step_is_hardly_longer_than_the_shortest() -> None:
    assert Knob([20, 10.1, 10]).best() == 1
    # 95 % and 96 % saved: a step of 5 against one of 4.
    assert Knob([100, 5, 4]).best() == 2


def test_a_setting_that_fails_loses_and_ends_nothing_else() -> None:
    knob = Knob([20, 10, None])
    assert knob.best() == 1
    assert knob.told == [(1, 0, True), (2, 0, False)]


def test_the_others_follow_by_what_they_save_and_those_that_failed_do_not() -> None:
    knob = Knob([20, 10.1, 10, None])
    assert KnobSweep(4, True, knob.compare, lambda *_: None, 4, 10).ranking() == [1, 2, 0]


def test_where_the_first_does_not_run_the_next_is_the_yardstick() -> None:
    knob = Knob([None, 20, 10])
    assert knob.best() == 2
    assert knob.told == [(0, 1, False), (2, 1, True)]
    assert Knob([None, None, 10]).best() == 2


def test_where_nothing_runs_the_last_yardstick_is_left_for_the_trial_to_fail() -> None:
    knob = Knob([None, None])
    assert knob.best() in (0, 1)
    assert len(knob.asked) == 1


def test_what_the_intervals_cannot_tell_apart_is_measured_again_with_twice_the_pairs() -> None:
    knob = Knob([20, 11, 10, 19], half=0.2)
    assert knob.best() == 2
    assert [(number, pairs) for _, number, pairs in knob.asked] == [(1, 4), (2, 4), (3, 4), (2, 8), (1, 8)]
    hurried = Knob([20, 11, 10, 19], half=0.2)
    hurried.best(most_pairs=4)
    assert {pairs for _, _, pairs in hurried.asked} == {4}


def test_the_best_stands_alone_where_no_other_may_be_better() -> None:
    savings = {0: Interval(0, 0, 0), 1: Interval(0.5, 0.49, 0.51), 2: Interval(0.495, 0.48, 0.51)}
    assert close(savings) == [1, 2]
    assert cheapest_near_best(savings) == 1
    assert close(savings | {2: Interval(0.4, 0.39, 0.41)}) == [1]


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ([{"num_workers": 1}, {"num_workers": 2}], True),
        ([{"size": 2, "pin": True}, {"size": 4, "pin": True}], True),
        ([{"mode": "default"}, {"mode": "reduce-overhead"}], False),
        ([{"pin": False}, {"pin": True}], False),
        ([{"size": 4}, {"size": 2}], False),
        ([{"size": 2, "depth": 1}, {"size": 4, "depth": 2}], False),
        ([{"size": None}, {"size": 2}], False),
    ],
)
def test_settings_are_a_scale_where_one_number_rises(settings: Sequence[Mapping[str, object]], scale: bool) -> None:
    assert is_scale(settings) is scale  # type: ignore[arg-type]
