"""When the level of a series counts as changed, and how seldom that is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from diagnose.watching.change_test import (
    ALLOWANCE,
    CLIP,
    FEWEST,
    Change,
    ChangeTest,
    RateTest,
    exponent_of,
    huber,
    threshold,
)

DAY = 17_280
"""Blocks of five seconds."""


def noise(seed: int, count: int, scale: float = 0.02) -> list[float]:
    """Independent normal values around zero."""
    draw = random.Random(seed)
    return [draw.gauss(0.0, scale) for _ in range(count)]


def first_change(values: Sequence[float], test: ChangeTest | None = None) -> tuple[int, Change] | None:
    """The place at which the test says so first, and what it says."""
    test = test or ChangeTest(DAY, 0.05)
    for place, value in enumerate(values):
        change = test.add(value)
        if change is not None:
            return place, change
    return None


@pytest.mark.parametrize("seed", range(3))
def test_a_step_up_is_told_within_a_few_values_and_dated(seed: int) -> None:
    values = noise(seed, 200)
    found = first_change([*values[:150], *(value + 0.2 for value in values[150:])])
    assert found is not None
    place, change = found
    assert change.upwards
    assert place - 150 <= 5
    assert abs(place + 1 - change.values - 150) <= 2


def test_a_step_down_is_told_too() -> None:
    values = noise(0, 200)
    found = first_change([*values[:150], *(value - 0.2 for value in values[150:])])
    assert found is not None
    assert not found[1].upwards


def test_noise_is_taken_for_a_change_as_seldom_as_is_asked_for() -> None:
    test = ChangeTest(3_000, 0.05)
    assert sum(test.add(value) is not None for value in noise(1, 3_000, 0.05)) <= 1


@pytest.mark.parametrize("every", [2, 7, 120])
def test_slow_values_that_come_periodically_belong_to_the_level(every: int) -> None:
    values = [value + (1.0 if place % every == 0 else 0.0) for place, value in enumerate(noise(2, 1_000))]
    assert first_change(values) is None


def test_a_single_value_is_never_a_change_however_large() -> None:
    values = noise(3, 100)
    values[60] = 50.0
    assert first_change(values) is None
    assert threshold(1) < CLIP - ALLOWANCE < threshold(DAY)


def test_a_shift_below_the_least_that_matters_is_not_told() -> None:
    values = noise(4, 400, 0.001)
    assert first_change([*values[:200], *(value + 0.02 for value in values[200:])]) is None


def test_a_slow_ramp_is_told_and_not_taken_for_the_usual() -> None:
    values = [value + max(0, place - 200) * 0.001 for place, value in enumerate(noise(5, 600, 0.01))]
    found = first_change(values)
    assert found is not None
    assert found[0] < 300


def test_a_level_that_is_given_is_tested_from_the_start() -> None:
    values = [5.0 + value for value in noise(6, 100)]
    assert first_change(values) is None
    found = first_change(values, ChangeTest(DAY, 1.0, level=0.0))
    assert found is not None
    assert found[0] < FEWEST + 10


def test_the_threshold_solves_the_equation_of_the_average_run_length() -> None:
    reach = 2 * ALLOWANCE * (threshold(DAY) + 1.166)
    assert (math.exp(reach) - reach - 1) / (2 * ALLOWANCE**2) == pytest.approx(DAY, rel=1e-3)


def test_values_that_stand_out_make_the_test_more_careful() -> None:
    calm = [value / 0.02 for value in noise(7, 500)]
    wild = [CLIP if place % 20 == 0 else value for place, value in enumerate(calm)]
    assert exponent_of(wild, 1.0) < exponent_of(calm, 1.0) <= 2 * ALLOWANCE


def test_outliers_move_neither_level_nor_scale_far() -> None:
    values = [*noise(8, 200), *[100.0] * 10]
    level, scale = huber(values)
    assert abs(level) < 0.01
    assert scale == pytest.approx(0.025, rel=0.3)


def test_a_constant_series_has_no_scale() -> None:
    assert huber([2.0] * 30) == (2.0, 0.0)


def test_slow_values_that_come_more_often_are_told() -> None:
    test = RateTest(DAY)
    usual = [test.add(place % 120 == 0) for place in range(1_200)]
    assert not any(usual)
    found = next(place for place in range(100) if test.add(place % 4 == 0) is not None)
    assert found <= 24


def test_values_that_stand_out_as_often_as_ever_are_not_told() -> None:
    draw, test = random.Random(9), RateTest(DAY)
    assert sum(test.add(draw.random() < 0.05) is not None for _ in range(DAY)) <= 1
