"""The trajectory gate on made-up losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from diagnose.model import Gate
from diagnose.trial.gates.trajectory import Curve, trajectory

STEPS = 100


def run(luck: np.random.Generator, level: float = 0.0, steps: int = STEPS) -> Curve:
    """A falling loss with the noise of batches, and with the luck of a seed all along."""
    at = np.arange(steps)
    return Curve(2.3 * np.exp(-at / 60) + level + 0.05 * luck.standard_normal(steps))


SEEDS = [run(np.random.default_rng(seed), level) for seed, level in enumerate((-0.04, 0.0, 0.04))]


def changed(by: Callable[[np.ndarray], np.ndarray]) -> list[Curve]:
    return [Curve(by(curve.losses.copy())) for curve in SEEDS]


def test_losses_that_are_off_by_less_than_luck_pass_and_the_figures_are_told() -> None:
    answer = trajectory(SEEDS, changed(lambda losses: losses + 0.01 * np.random.default_rng(7).standard_normal(STEPS)))
    assert answer.passed is True
    assert answer.gate is Gate.TRAINING
    assert answer.detail.startswith("losses of 100 steps under 3 seeds stay inside the original's spread; at most 0.")


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (lambda losses: losses * 1.15, "the loss is off by +0."),
        (lambda losses: losses + np.linspace(0, 0.5, STEPS), "the loss is off by +0."),
        (lambda losses: losses + 0.00195 * np.arange(STEPS) * np.sign(50 - np.arange(STEPS)), "the loss"),
        (lambda losses: np.where(np.arange(STEPS) == 70, np.nan, losses), "the loss of step 71 is NaN"),
    ],
    ids=["scaled", "drifting", "spiked", "NaN"],
)
def test_losses_outside_of_luck_fail(by: Callable[[np.ndarray], np.ndarray], said: str) -> None:
    answer = trajectory(SEEDS, changed(by))
    assert answer.passed is False
    assert answer.detail.startswith(said)


def test_a_slow_drift_under_every_seed_fails_before_it_leaves_the_band() -> None:
    answer = trajectory(SEEDS, changed(lambda losses: losses + np.linspace(-0.07, 0.07, STEPS)))
    assert answer.passed is False
    assert "drifts away" in answer.detail


def test_one_seed_far_off_fails_and_one_that_is_merely_unlucky_does_not() -> None:
    far = [*SEEDS[:2], Curve(SEEDS[2].losses + 0.5)]
    unlucky = [*SEEDS[:2], Curve(SEEDS[2].losses + 0.08)]
    assert trajectory(SEEDS, far).passed is False
    assert trajectory(SEEDS, unlucky).passed is True


def test_a_fix_that_draws_other_random_numbers_seldom_fails() -> None:
    """The worst case: nothing of a seed's luck is shared by the two programs."""

    def luck(seed: int) -> list[Curve]:
        generator = np.random.default_rng(seed)
        return [run(generator, 0.04 * generator.standard_normal()) for _ in range(6)]

    def fails(trial: int) -> bool:
        before, after = luck(2 * trial), luck(2 * trial + 1)
        return all(trajectory(before[:seeds], after[:seeds]).passed is False for seeds in (3, 6))

    assert sum(map(fails, range(200))) <= 10


def test_a_program_that_no_seed_touches_may_still_round_otherwise() -> None:
    same = [SEEDS[1]] * 3
    assert trajectory(same, [Curve(SEEDS[1].losses + 0.001)] * 3).passed is True
    assert trajectory(same, [Curve(SEEDS[1].losses + 0.02)] * 3).passed is False


@pytest.mark.parametrize(
    ("originals", "patched", "said"),
    [
        (SEEDS[:2], SEEDS[:2], "2 seeds are too few"),
        ([run(np.random.default_rng(7), steps=49)] * 3, SEEDS, "the program ends after 49 steps; 50 are needed"),
        (SEEDS, [run(np.random.default_rng(7), steps=30)] * 3, "the program ends after 30 steps"),
        (changed(lambda losses: losses * np.nan), SEEDS, "the original's own loss"),
    ],
    ids=["seeds", "short", "shorter", "NaN"],
)
def test_what_cannot_be_compared_is_unverified(originals: list[Curve], patched: list[Curve], said: str) -> None:
    answer = trajectory(originals, patched)
    assert answer.passed is None
    assert answer.detail.startswith(said)


def test_memory_that_grows_only_in_the_patched_program_fails() -> None:
    held = [Curve(curve.losses, np.full(STEPS, 1e9)) for curve in SEEDS]
    grows = [Curve(curve.losses, np.linspace(1e9, 1.1e9, STEPS)) for curve in SEEDS]
    jumps = [Curve(curve.losses, np.where(np.arange(STEPS) > 70, 2e9, 1e9)) for curve in SEEDS]
    answer = trajectory(held, grows)
    assert answer.passed is False
    assert answer.detail == "the memory held grows by 986 KiB every step"
    assert trajectory(grows, grows).passed is True
    assert trajectory(held, jumps).passed is True


def test_the_optimizers_must_be_made_of_the_same_with_the_same_settings() -> None:
    def made_of(settings: dict[str, object], parameters: int = 2, kept: str = "exp_avg") -> Curve:
        group = {"shapes": [[4]] * parameters, "settings": settings, "kept": [[kept]] * parameters}
        return Curve(SEEDS[0].losses, optimizers={"1": [{"kind": "AdamW", "groups": [group]}]})

    as_it_was = made_of({"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8})
    rounded = made_of({"lr": 1e-3 + 1e-11, "betas": [0.9, 0.999], "eps": 1e-8, "new": True})
    for changed, said in {
        "eps": (made_of({"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-6}), "eps is 1e-06, was 1e-08"),
        "betas": (made_of({"lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8}), "betas is [0.9, 0.99], was [0.9, 0.999]"),
        "one": (made_of({}, 1), "1 parameters, not 2 as before"),
        "kept": (made_of({}, kept="step"), "of parameter 0 it keeps step, not exp_avg as before"),
    }.values():
        answer = trajectory([as_it_was] * 3, [changed] * 3)
        assert answer.passed is False
        assert answer.detail == f"optimizer 0, group 0: {said}"
    assert trajectory([as_it_was] * 3, [rounded] * 3).passed is True
