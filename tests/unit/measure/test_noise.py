"""How well steps are known: the noise floor under every finding and every comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diagnose.measure.views.noise import (
    common_period,
    mean_uncertain_by,
    median_surely,
    period_of,
    usual,
    usual_uncertain_by,
)

DRAWS = 200


def drawn(kinds: list[float], steps: int, noise: float, seed: int) -> np.typing.NDArray[np.float64]:
    """Steps of these kinds in turn, each with normal noise."""
    return np.resize(kinds, steps) + np.random.default_rng(seed).normal(0, noise, steps)


@pytest.mark.parametrize(
    ("kinds", "steps"), [([60, 80], 4), ([60, 80], 9), ([60, 60, 60, 80], 12), ([60, 70, 80], 20), ([50, 90], 400)]
)
def test_steps_that_take_turns_are_told(kinds: list[float], steps: int) -> None:
    told = [period_of(drawn(kinds, steps, 0.5, seed)) for seed in range(DRAWS)]
    assert told.count(len(kinds)) > 0.95 * DRAWS


@pytest.mark.parametrize("steps", [3, 4, 5, 6, 8, 9, 12, 20, 40, 100])
def test_steps_that_vary_by_chance_seldom_look_like_it(steps: int) -> None:
    told = [period_of(drawn([60], steps, 1, seed)) for seed in range(DRAWS)]
    assert told.count(1) >= 0.92 * DRAWS


@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("steps", [4, 5, 6])
def test_one_stray_step_is_no_period(steps: int, at: int) -> None:
    lengths = np.asarray([60.0, 60.1, 59.9, 60.05, 59.95, 60.02])[:steps]
    lengths[at % steps] = 100
    assert period_of(lengths) == 1


def test_two_kinds_in_no_order_are_no_period() -> None:
    told = [period_of(np.random.default_rng(seed).permutation([60, 80] * 20)) for seed in range(DRAWS)]
    assert told.count(1) > 0.95 * DRAWS


@pytest.mark.parametrize("steps", [9, 12, 20, 40])
def test_stray_steps_that_meet_in_a_phase_are_no_period(steps: int) -> None:
    told = [period_of(strayed(steps, seed)) for seed in range(DRAWS)]
    assert told.count(1) >= 0.92 * DRAWS


@pytest.mark.parametrize("steps", [9, 12, 20, 40])
def test_two_recordings_of_one_program_with_stray_steps_are_alike(steps: int) -> None:
    """What one usually takes is the same, though a period may be seen in one of them."""
    unlike = 0
    for seed in range(DRAWS):
        first, second = strayed(steps, seed), strayed(steps, DRAWS + seed)
        period = common_period(first, second)
        uncertain = math.hypot(usual_uncertain_by(first, period) or 0, usual_uncertain_by(second, period) or 0)
        unlike += abs(usual(first, period) - usual(second, period)) > max(uncertain, 0.01 * 60)
    assert unlike <= 0.1 * DRAWS


def strayed(steps: int, seed: int) -> np.typing.NDArray[np.float64]:
    """Steps of which one in ten takes twice as long, by chance."""
    noise = np.random.default_rng(seed)
    return 60 + noise.normal(0, 0.6, steps) + 60 * (noise.random(steps) < 0.1)


def test_recordings_with_different_periods_have_none_in_common() -> None:
    assert common_period([60, 80] * 8, [80, 60] * 6) == 2
    assert common_period([60, 80] * 8, [60] * 12) == common_period([60, 80] * 8, [60, 60, 80] * 6) == 1


def test_how_kinds_of_steps_differ_is_no_noise_of_their_mean() -> None:
    alternating = mean_uncertain_by(drawn([60, 80], 400, 1, 0))
    alike = mean_uncertain_by(drawn([60], 400, 1, 0))
    assert alternating == pytest.approx(alike, rel=0.2)
    assert alike == pytest.approx(2 / math.sqrt(400), rel=0.2)


def test_a_period_that_is_cut_shifts_the_mean() -> None:
    """Of nine steps, five take 60 and four 80: the mean is 68.9 where it ought to be 70."""
    assert mean_uncertain_by([60, 80] * 4 + [60]) == pytest.approx(70 - (5 * 60 + 4 * 80) / 9)
    assert mean_uncertain_by([60, 80] * 4) == 0


def test_the_stated_uncertainty_of_the_mean_holds_nineteen_times_in_twenty() -> None:
    held = 0
    for seed in range(DRAWS):
        lengths = drawn([60, 60, 60, 80], 40, 1, seed)
        uncertain = mean_uncertain_by(lengths)
        assert uncertain is not None
        held += abs(lengths.mean() - 65) <= uncertain
    assert 0.88 * DRAWS <= held < DRAWS


def test_what_steps_usually_take_is_the_mean_of_a_period() -> None:
    assert usual([60, 80] * 6) == usual([80, 60] * 6 + [80]) == 70
    assert usual([60, 61, 59, 200, 60, 60]) == 60
    assert usual([60, 60, 60, 80] * 5) == 65


def test_fewer_than_three_steps_tell_no_noise() -> None:
    assert mean_uncertain_by([1, 2]) is usual_uncertain_by([1, 2]) is None
    assert math.isnan(usual([]))


@pytest.mark.parametrize(("count", "rank"), [(3, 0), (5, 0), (6, 1), (8, 1), (20, 6), (2000, 973)])
def test_a_median_lies_above_the_value_told_seven_times_in_eight(count: int, rank: int) -> None:
    assert median_surely(range(count)) == rank
    lies_below = [sum(math.comb(count, at) for at in range(known + 1)) for known in (rank, rank + 1)]
    assert 8 * lies_below[0] <= 2**count < 8 * lies_below[1]


def test_one_value_however_far_off_moves_no_sure_median() -> None:
    assert median_surely([5, 6, 7, 8, 9, 10]) == median_surely([-900, 6, 7, 8, 9, 10]) == 6


def test_of_two_values_no_median_is_sure() -> None:
    assert median_surely([1, 2]) is None
