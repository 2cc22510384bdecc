"""What recurs every few steps: blocks are made so long that each of them holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fake_arms import FakeArm, Machine

from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.periodic_steps import MOST_TRACED, TIMES, steps_to_hold, steps_to_see
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.process.arm import Block
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import NS_PER_MS, NS_PER_S

LONGEST_NS = 6 * NS_PER_S


def block(steps_ms: Sequence[float]) -> Block:
    steps_ns = [round(ms * NS_PER_MS) for ms in steps_ms]
    return Block(len(steps_ns), sum(steps_ns), 0, steps_ns=steps_ns)


def blocks(steps_ms: Iterator[float], steps: int, number: int = 6) -> list[Block]:
    return [block([next(steps_ms) for _ in range(steps)]) for _ in range(number)]


def every(steps: int, long_ms: float, usual_ms: float = 10) -> Iterator[float]:
    return (long_ms if step % steps == 0 else usual_ms for step in count(1))


def test_blocks_that_miss_what_recurs_are_to_hold_it_several_times() -> None:
    assert steps_to_hold(blocks(every(5, 800), 2, 10), LONGEST_NS) == TIMES * 5
    assert steps_to_hold(blocks(every(50, 1000), 25), LONGEST_NS) == TIMES * 50


def test_blocks_that_all_hold_it_are_alike_and_stay() -> None:
    assert steps_to_hold(blocks(every(5, 800), 5), LONGEST_NS) == 0
    assert steps_to_hold(blocks(every(50, 2000), 100), LONGEST_NS) == 0


def test_what_is_small_beside_a_block_needs_no_longer_one() -> None:
    assert steps_to_hold(blocks(every(50, 40), 25), LONGEST_NS) == 0


def test_a_mishap_recurs_nowhere() -> None:
    once = [block([10, 10, 900]), *blocks(every(1, 10), 3)]
    assert steps_to_hold(once, LONGEST_NS) == 0


def test_a_slower_half_of_a_run_is_not_a_step_of_many() -> None:
    assert steps_to_hold([block([10] * 4), block([30] * 4), block([10] * 4), block([30] * 4)], LONGEST_NS) == 0


def test_a_host_that_runs_ahead_waits_at_the_end_of_each_block_for_all_of_it() -> None:
    usual, slower = block([1] * 9 + [190]), block([2] * 9 + [450])
    assert steps_to_hold([usual, slower, usual, usual], LONGEST_NS) == 0


def test_such_a_block_lasts_only_so_long() -> None:
    found = blocks(every(50, 5000), 25)
    steps = steps_to_hold(found, LONGEST_NS)
    mean_ns = sum(one.total_ns for one in found) / sum(one.steps for one in found)
    assert steps * mean_ns == pytest.approx(LONGEST_NS, rel=0.02)


def test_blocks_without_their_steps_say_nothing() -> None:
    assert steps_to_hold([Block(2, 20, 0), Block(2, 900, 0)], LONGEST_NS) == 0
    assert steps_to_hold([], LONGEST_NS) == 0


def test_a_profiler_window_is_long_enough_to_see_it() -> None:
    assert steps_to_see(TIMES * 5) == 2 * 5
    assert steps_to_see(TIMES * 1000) == MOST_TRACED
    assert steps_to_see(0) == 0


class StepByStep(FakeArm, ABC):
    """Tells what each of its steps takes."""

    @abstractmethod
    def step_ms(self) -> float:
        """Of the step that has just been taken."""

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        assert limit_ns > 0
        self.walk(drop)
        taken_ms = []
        for _ in range(steps):
            self.walk(1)
            taken_ms.append(self.step_ms())
        return block(taken_ms)


class Compiling(StepByStep):
    """Its original compiles in every fifth step; the first few take longest."""

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        return [*super().trace(steps, drop, limit_ns), Path(f"{steps} steps")]

    def step_ms(self) -> float:
        compiles = self.side == ORIGINAL and self.steps % 5 == 0
        return 6 + (0 if not compiles else 2000 if self.steps < 12 else 800)


def compared(least_steps: int = 0) -> Comparison:
    machine = Machine()

    def side(one: int) -> Callable[[int], Compiling]:
        return lambda number: Compiling(machine, one, number)

    duel = ABTrial(Schedule(), Deadline(), resolution=0.05, fits=True, least_steps=least_steps)
    return compare(duel, side(ORIGINAL), side(PATCHED))


def against_itself(**more: Any) -> Comparison:
    machine = Machine()

    def side(_either: int) -> Callable[[int], Compiling]:
        return lambda number: Compiling(machine, ORIGINAL, number)

    trial = replace(ABTrial(Schedule(), Deadline(), fits=True, control=True), **more)
    return compare(trial, side(ORIGINAL), side(PATCHED))


def test_a_trial_begins_anew_with_longer_blocks_and_sees_what_a_step_costs() -> None:
    found = compared()
    assert found.held_steps == found.steps > 5
    assert found.saving is not None
    assert 0.9 < found.saving.low <= found.saving.estimate < 1
    assert all(pair.original_ns > 80 * NS_PER_MS for pair in found.pairs)
    assert {side[1] for side in found.traces} == {Path(f"{steps_to_see(found.held_steps)} steps")}


def test_a_control_learns_from_both_sides_with_the_few_pairs_that_a_budget_leaves_it() -> None:
    found = against_itself(patience=Deadline(0, clock=lambda: 1))
    assert found.held_steps > 5
    assert {pair.generation for pair in found.pairs} == {0, 1}
    assert len(found.pairs) == 2 * Schedule().screen_pairs
    assert max(pair.original_ns for pair in found.pairs) < 2 * min(pair.original_ns for pair in found.pairs)


class Collecting(FakeArm):
    """From its fourth block on, the last step of each takes far longer."""

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        super().run(steps, drop, limit_ns)
        return block([10] * (steps - 1) + [500 if self.blocks > 3 else 10])


def test_what_begins_anew_does_not_end_by_what_it_saw_before() -> None:
    """It was hopeless after four pairs, when longer blocks were called for; four of those show it as well."""
    machine = Machine()

    def side(one: int) -> Callable[[int], Collecting]:
        return lambda number: Collecting(machine, one, number)

    trial = ABTrial(Schedule(), Deadline(), resolution=0.05, needed=1.0, fits=True)
    found = compare(trial, side(ORIGINAL), side(PATCHED))
    assert found.held_steps > Schedule().block_steps(10 * NS_PER_MS)
    assert (found.ending, len(found.pairs)) == (Ending.HOPELESS, Schedule().screen_pairs)


def test_later_trials_begin_with_what_an_earlier_one_has_learned() -> None:
    found = compared(least_steps=15)
    assert (found.steps, found.held_steps) == (15, 0)
    assert {pair.original_ns for pair in found.pairs} == {166 * NS_PER_MS}
    assert {side[1] for side in found.traces} == {Path("10 steps")}


class Saving(StepByStep):
    """Its original writes a checkpoint every 20 steps."""

    def step_ms(self) -> float:
        return 900 if self.side == ORIGINAL and self.steps % 20 == 0 else 100


def saving(**more: Any) -> Comparison:
    machine = Machine()

    def side(one: int) -> Callable[[int], Saving]:
        return lambda number: Saving(machine, one, number)

    return compare(
        replace(ABTrial(Schedule(), Deadline(), resolution=0.05, fits=True), **more), side(ORIGINAL), side(PATCHED)
    )


@pytest.mark.parametrize("twins", [False, True])
def test_a_program_that_ends_before_it_has_longer_blocks_is_compared_by_short_ones(twins: bool) -> None:
    machine = Machine(lasts=70)

    def side(one: int) -> Callable[[int], Saving]:
        return lambda number: Saving(machine, ORIGINAL if twins else one, number)

    duel = ABTrial(Schedule(), Deadline(), resolution=None if twins else 0.05, fits=True, control=twins, trace=False)
    found = compare(duel, side(ORIGINAL), side(PATCHED))
    assert found.ended_after is not None
    assert (found.steps, found.held_steps) == (Schedule().least_steps, 0)
    assert len({pair.generation for pair in found.pairs}) > 1


def test_pairs_are_kept_where_no_time_is_left_for_longer_blocks() -> None:
    assert saving().held_steps > 0
    found = saving(deadline=Deadline(20 * NS_PER_S, clock=lambda: 0))
    assert found.held_steps == 0
    assert len(found.pairs) >= Schedule().pairs


def test_of_the_time_left_a_first_look_at_longer_blocks_takes_no_more_than_half() -> None:
    schedule = Schedule()
    blocks_of_a_look = 2 * schedule.screen_pairs * schedule.generations
    assert schedule.longest_ns() == 20 * schedule.block_ns
    assert blocks_of_a_look * schedule.longest_ns(60 * NS_PER_S) == pytest.approx(30 * NS_PER_S)
    assert schedule.longest_ns(0) == 0


def test_what_another_setting_takes_is_no_step_of_the_original() -> None:
    machine = Machine()

    def other(one: int) -> Callable[[int], Saving]:
        return lambda number: Saving(machine, 1 - one, number)

    sweep = ABTrial(Schedule(), Deadline(), fits=True, trace=False)
    assert compare(sweep, other(ORIGINAL), other(PATCHED)).held_steps == 0
    assert compare(replace(sweep, control=True), other(ORIGINAL), other(PATCHED)).held_steps > 0


def test_processes_that_take_turns_have_blocks_as_long() -> None:
    assert Machine().run(fits=False, least_steps=100).steps == 100
