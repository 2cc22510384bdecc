"""The statistics behind a verdict, on simulated clocks: nothing here measures time."""

from __future__ import annotations

import numpy as np
import pytest

from diagnose.model import Decision, Gate, GateResult, Interval, Mechanism
from diagnose.verdict import (
    LEAST_PAIRS,
    Pair,
    beyond,
    clear,
    confidence_of_each,
    estimate,
    floor,
    hopeless,
    nothing_in_sight,
    precise,
    resolution,
    ruling,
    ruling_on_mechanism,
    ruling_on_time,
    sure,
)

PASSED = GateResult(Gate.BITWISE, True, "equal bit for bit")
MOVED = Mechanism("idle.input", 10_000_000, 1_000_000, "ns", True)
CLEAR_GAIN = Interval(0.20, 0.18, 0.22)


def simulate(
    seed: int,
    saving: float = 0.0,
    *,
    pairs: int = 20,
    generations: int = 2,
    noise: float = 0.01,
    process_luck: float = 0.002,
    drift: float = 0.0,
    interleaved: bool = True,
) -> list[Pair]:
    """Block means as a trial would see them; `drift` is the growth of the step over the whole trial."""
    rng = np.random.default_rng(seed)
    slots = 2 * pairs
    weather = 1 + drift * np.arange(slots) / slots
    found = []
    for pair in range(pairs):
        generation = pair * generations // pairs
        luck = np.random.default_rng((seed, generation)).normal(0, process_luck, 2)
        if interleaved:
            first = 2 * pair
            original, patched = (first, first + 1) if pair % 2 == 0 else (first + 1, first)
        else:
            original, patched = pair, pairs + pair
        noises = 1 + rng.normal(0, noise, 2)
        found.append(
            Pair(
                generation,
                20e6 * (1 + luck[0]) * weather[original] * noises[0],
                20e6 * (1 + luck[1]) * weather[patched] * noises[1] * (1 - saving),
            )
        )
    return found


def kept(pairs: list[Pair], control: list[Pair]) -> bool:
    return estimate(pairs).low > floor(resolution(estimate(control)))


def test_a_fix_without_effect_is_hardly_ever_kept() -> None:
    false_keeps = sum(kept(simulate(seed, process_luck=0.005), simulate(seed + 10_000)) for seed in range(200))
    assert false_keeps <= 200 * 0.05


def test_a_true_saving_of_three_percent_is_found() -> None:
    found = sum(kept(simulate(seed, 0.03, noise=0.005), simulate(seed + 10_000, noise=0.005)) for seed in range(100))
    assert found >= 90


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    intervals = [estimate(simulate(seed, 0.05, generations=4, pairs=40)) for seed in range(100)]
    assert sum(interval.low <= 0.05 <= interval.high for interval in intervals) >= 88


def test_slow_drift_cancels_between_neighbouring_blocks() -> None:
    quiet = {"noise": 0.0, "process_luck": 0.0, "drift": 0.10}
    assert estimate(simulate(1, **quiet)).estimate == pytest.approx(0.0, abs=1e-5)  # type: ignore[arg-type]
    one_after_the_other = estimate(simulate(1, interleaved=False, **quiet))  # type: ignore[arg-type]
    assert one_after_the_other.estimate < -0.04


def test_one_bad_generation_widens_the_interval_past_both_generations() -> None:
    steady = [Pair(generation, 100.0, 90.0 + 0.1 * (i % 2)) for generation in (0, 1) for i in range(10)]
    unlucky = [Pair(pair.generation, 100.0, pair.patched_ns + 10 * pair.generation) for pair in steady]
    narrow, wide = estimate(steady), estimate(unlucky)
    assert narrow.high - narrow.low < 0.002
    assert wide.low < 0.0
    assert wide.high > 0.10


def test_an_interval_reaches_farther_to_the_side_of_the_one_generation_that_stands_out() -> None:
    seen = estimate([Pair(generation, 100.0, 70.0 if generation == 2 else 100.0) for generation in (0, 1, 2)] * 4)
    assert seen.estimate == pytest.approx(1 - 0.7 ** (1 / 3))
    assert seen.high - seen.estimate > 1.5 * (seen.estimate - seen.low)


LONE_LOW = [Pair(0, 100.0, patched) for patched in (89.8, 87.0, 87.0, 87.0, 87.0)]
"""Four or five of five draws are the pair of 10.2 % in 0.67 % of the resamples, whose saving is then below 10 %."""


def test_an_interval_leaves_out_as_much_below_as_above() -> None:
    assert estimate(LONE_LOW, 0.985).low > 0.10  # 0.75 % below
    assert estimate(LONE_LOW, 0.99).low < 0.10  # 0.5 % below


def test_the_same_pairs_give_the_same_interval() -> None:
    pairs = simulate(3, 0.02)
    assert estimate(pairs) == estimate(pairs)


def test_the_estimate_is_the_share_of_the_step_saved() -> None:
    halved = estimate([Pair(generation, 100.0, 50.0) for generation in (0, 0, 1, 1)])
    assert (halved.estimate, halved.low, halved.high) == pytest.approx((0.5, 0.5, 0.5))


def test_each_generation_has_the_same_say_however_many_pairs_it_has() -> None:
    pairs = [Pair(0, 100.0, 80.0)] * 9 + [Pair(1, 100.0, 100.0)]
    assert estimate(pairs).estimate == pytest.approx(1 - np.sqrt(0.8))


def test_of_four_pairs_the_middle_two_decide() -> None:
    assert estimate([Pair(0, 100.0, patched) for patched in (50.0, 100.0, 100.0, 200.0)]).estimate == 0.0
    assert estimate([Pair(0, 100.0, patched) for patched in (20.0, 100.0, 100.0, 100.0)]).estimate == 0.0


def test_several_looks_share_the_error_of_one() -> None:
    assert [confidence_of_each(looks) for looks in (0, 1, 2, 50)] == pytest.approx([0.95, 0.95, 0.975, 0.999])


def test_without_pairs_there_is_no_estimate() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        estimate([])


def test_the_resolution_is_the_farther_bound_of_the_control() -> None:
    assert resolution(Interval(0.009, -0.003, 0.024)) == 0.024
    assert resolution(Interval(-0.009, -0.024, 0.003)) == pytest.approx(0.024 / 1.024)  # with the sides swapped
    assert resolution(Interval(0.0, -1.0, 0.4)) == pytest.approx(0.5)
    assert floor(0.0004) == 0.01
    assert floor(0.024) == 0.024


def test_a_clear_loser_and_a_clear_no_change_may_stop_early() -> None:
    assert hopeless(simulate(1, -0.10, pairs=5, generations=1), 0.001, looks=4)
    assert hopeless(simulate(1, 0.0, pairs=5, generations=1, noise=0.001, process_luck=0), 0.001, looks=4)


def test_the_luck_of_processes_is_counted_once() -> None:
    """Of one generation the control tells it; several have it in their interval."""
    one, two = (simulate(1, 0.01, pairs=8, generations=count, noise=0.001, process_luck=0) for count in (1, 2))
    assert not hopeless(one, 0.05, looks=4)
    assert hopeless(two, 0.05, looks=4)
    assert nothing_in_sight(one, 0.05, looks=4)
    assert not nothing_in_sight(simulate(1, 0.10, pairs=8, generations=1), 0.05, looks=4)
    assert not nothing_in_sight([Pair(0, 100.0, 200.0)] * 3, 0.05, looks=4)


def test_who_looks_often_asks_more_of_each_look() -> None:
    pairs = simulate(1, 0.10, pairs=10)
    one, of_fifty = estimate(pairs, 0.95), estimate(pairs, 1 - 0.05 / 50)
    low, high = (one.low + of_fifty.low) / 2, (one.high + of_fifty.high) / 2
    assert [clear(pairs, 0.0, looks, beyond=low) for looks in (0, 1, 50)] == [True, True, False]
    assert [hopeless(pairs, 0.0, looks, needed=high) for looks in (0, 1, 50)] == [True, True, False]
    assert [nothing_in_sight(pairs, 0.0, looks, needed=high) for looks in (0, 1, 50)] == [True, True, False]
    assert [precise(pairs, looks, enough=high) for looks in (0, 1, 50)] == [True, True, False]
    assert [sure(LONE_LOW, looks) for looks in (0, 1, 50)] == [True, True, False]


def test_the_fewest_pairs_are_enough_to_stop_on_and_one_less_is_not() -> None:
    for enough in (True, False):
        same, halved, doubled = (
            [Pair(0, 100.0, patched)] * (LEAST_PAIRS if enough else LEAST_PAIRS - 1) for patched in (100.0, 50.0, 200.0)
        )
        assert hopeless(doubled, 0.0, looks=1) is enough
        assert nothing_in_sight(doubled, 0.0, looks=1) is enough
        assert clear(halved, 0.0, looks=1) is enough
        assert sure(halved, looks=1) is enough
        assert precise(same, looks=1) is enough


def test_what_must_be_exceeded_is_not_exceeded_by_as_much() -> None:
    halved = [Pair(0, 100.0, 50.0)] * LEAST_PAIRS
    seen = estimate(halved)
    assert not clear(halved, 0.0, looks=1, beyond=seen.low)
    assert not nothing_in_sight(halved, 0.0, looks=1, needed=seen.high)
    assert not precise(halved, looks=1, enough=resolution(seen))


def test_a_saving_is_beyond_a_share_where_each_pair_is() -> None:
    assert beyond([Pair(0, 100.0, 89.0), Pair(0, 100.0, 50.0)], 0.10)
    assert not beyond([Pair(0, 100.0, 90.0), Pair(0, 100.0, 50.0)], 0.10)
    assert not beyond([Pair(0, 100.0, 95.0), Pair(0, 100.0, 50.0)], 0.10)


def test_a_promising_or_unclear_trial_goes_on() -> None:
    assert not hopeless(simulate(1, 0.10, pairs=5, generations=1), 0.001, looks=4)
    assert not hopeless(simulate(1, 0.0, pairs=5, generations=1, noise=0.05), 0.001, looks=4)
    assert not hopeless([Pair(0, 100.0, 200.0)] * 3, 0.001, looks=4)


def test_looking_often_hardly_ever_drops_a_fix_worth_keeping() -> None:
    dropped = sum(
        any(hopeless(simulate(seed, 0.03)[:seen], 0.005, looks=4) for seen in (5, 10, 15)) for seed in range(100)
    )
    assert dropped <= 2


def test_a_fix_that_keeps_all_its_promises_is_kept_and_says_the_figures() -> None:
    answer = ruling(CLEAR_GAIN, 20, PASSED)
    assert answer.decision is Decision.KEPT
    assert answer.summary == "20 % of the step saved (20 pairs, +18.0 % … +22.0 %); equal bit for bit"


NO_CHANGE, SLOWER, FAILED, NOT_TRIED = Decision.NO_CHANGE, Decision.SLOWER, Decision.FAILED, Decision.NOT_TRIED


@pytest.mark.parametrize(
    ("saving", "smallest", "decision", "summary"),
    [
        (
            Interval(0.001, -0.003, 0.006),
            0.004,
            NO_CHANGE,
            "no measurable saving (20 pairs, −0.3 % … +0.6 %; more than 1.0 % needed)",
        ),
        (
            Interval(0.003, 0.0, 0.006),
            0.004,
            NO_CHANGE,
            "no measurable saving (20 pairs, +0.0 % … +0.6 %; more than 1.0 % needed)",
        ),
        (
            Interval(0.03, 0.02, 0.04),
            0.025,
            NO_CHANGE,
            "faster, though not surely by enough (20 pairs, +2.0 % … +4.0 %; more than 2.5 % needed)",
        ),
        (
            Interval(0.03, 0.025, 0.04),
            0.025,
            NO_CHANGE,
            "faster, though not surely by enough (20 pairs, +2.5 % … +4.0 %; more than 2.5 % needed)",
        ),
        (Interval(-0.10, -0.12, -0.08), 0.004, SLOWER, "slower by 10 % of the step (20 pairs, −12.0 % … −8.0 %)"),
        (
            Interval(-0.10, -0.12, 0.0),
            0.004,
            NO_CHANGE,
            "no measurable saving (20 pairs, −12.0 % … +0.0 %; more than 1.0 % needed)",
        ),
        # longer by a quarter is, with the sides swapped, a fifth saved: what the machine can just not tell
        (
            Interval(-0.25, -0.30, -0.20),
            0.20,
            NO_CHANGE,
            "no measurable saving (20 pairs, −30.0 % … −20.0 %; more than 20 % needed)",
        ),
    ],
)
def test_times_alone_settle_what_is_not_faster(
    saving: Interval, smallest: float, decision: Decision, summary: str
) -> None:
    answer = ruling_on_time(saving, 20, 2, smallest)
    assert answer is not None
    assert (answer.decision, answer.summary) == (decision, summary)


def test_times_alone_do_not_settle_what_is_faster() -> None:
    assert ruling_on_time(CLEAR_GAIN, 20, 2, 0.004) is None
    assert ruling_on_time(CLEAR_GAIN, LEAST_PAIRS, 2, 0.004) is None
    assert ruling_on_time(CLEAR_GAIN, 20, 1, 0.004, beyond_luck=True) is None


def test_a_trial_that_stopped_early_says_so() -> None:
    answer = ruling_on_time(Interval(0.001, -0.003, 0.006), 8, 1, 0.004, stopped_early=True)
    assert answer is not None
    assert answer.summary.endswith("(8 pairs, −0.3 % … +0.6 %, stopped early; more than 1.0 % needed)")


@pytest.mark.parametrize(
    ("saving", "pairs", "generations", "decision", "summary"),
    [
        (CLEAR_GAIN, 3, 2, FAILED, "too few steps to compare: 3 pairs of blocks measured"),
        (CLEAR_GAIN, 1, 1, FAILED, "too few steps to compare: 1 pair of blocks measured"),
        (None, 0, 0, FAILED, "too few steps to compare: 0 pairs of blocks measured"),
        (
            CLEAR_GAIN,
            10,
            1,
            NOT_TRIED,
            "looked faster (10 pairs, +18.0 % … +22.0 %), but there was time for one generation of processes only",
        ),
    ],
)
def test_too_few_pairs_or_generations_never_make_a_keep(
    saving: Interval | None, pairs: int, generations: int, decision: Decision, summary: str
) -> None:
    answer = ruling_on_time(saving, pairs, generations, 0.004)
    assert answer is not None
    assert (answer.decision, answer.summary) == (decision, summary)


GAIN = "20 % of the step saved"
MEASURED = "20 % of the step saved (20 pairs, +18.0 % … +22.0 %)"


@pytest.mark.parametrize(
    ("gate", "memory", "decision", "summary"),
    [
        (
            GateResult(Gate.BITWISE, False, "loss of step 2 differs"),
            None,
            Decision.CHANGES_NUMBERS,
            f"{GAIN}, but the numbers change: loss of step 2 differs",
        ),
        (
            GateResult(Gate.BITWISE, None, "no loss was seen"),
            None,
            Decision.UNVERIFIED,
            f"{MEASURED}, but the numbers could not be checked: no loss was seen",
        ),
        (PASSED, 1 << 30, Decision.OUT_OF_MEMORY, f"{GAIN}, but it peaks at 2.00 GiB of 1.00 GiB"),
        (PASSED, 1 << 31, Decision.KEPT, f"{MEASURED}; equal bit for bit"),
    ],
)
def test_a_faster_fix_that_breaks_a_promise_is_not_kept(
    gate: GateResult, memory: int | None, decision: Decision, summary: str
) -> None:
    answer = ruling(CLEAR_GAIN, 20, gate, (1 << 29, 1 << 31), memory)
    assert (answer.decision, answer.summary) == (decision, summary)


@pytest.mark.parametrize(
    ("before", "after", "moved", "told"),
    [
        (4, 4, False, "went from 4 kernels to 4 kernels"),
        (None, None, None, "could not be measured"),
        (4, None, False, "could not be measured"),
        (None, 4, False, "could not be measured"),
        (4, 4, None, "could not be measured"),
    ],
)
def test_a_faster_fix_that_does_not_move_what_it_claims_to_is_unexplained(
    before: int | None, after: int | None, moved: bool | None, told: str
) -> None:
    answer = ruling_on_mechanism(CLEAR_GAIN, 20, Mechanism("syncs", before, after, "kernels", moved))
    assert answer is not None and answer.decision is Decision.UNEXPLAINED
    assert answer.summary == f"{MEASURED}, but syncs, which it should lower, {told}"
    assert ruling_on_mechanism(CLEAR_GAIN, 20, MOVED) is None
