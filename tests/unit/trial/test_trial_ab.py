"""The order of turns and what is made of it, with arms whose clocks are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_arms import SCHEDULE, FakeArm, Machine, turns

from diagnose.model import Decision, Interval, Verdict
from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Ending
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.decision import skipped
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble
from diagnose.trial.process.capacity import Memory, died_of_memory, fits_twice
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.skip_request import SkipRequest
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.verdict import Pair


def test_blocks_go_abba_over_two_generations_started_in_swapped_order() -> None:
    machine = Machine()
    found = machine.run()
    starts = [entry for entry in machine.diary if entry.startswith("start")]
    assert starts == ["start A", "start B", "start B", "start A"]
    # Two unmeasured blocks, one of each arm, open every generation.
    assert turns(machine.diary) == "AB" + "ABBAABBA" + "AB" + "ABBAABBA"
    assert [pair.generation for pair in found.pairs] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert machine.alive == 0


def test_of_a_program_that_fills_the_host_each_arm_rests_before_the_next_starts() -> None:
    together, apart = Machine(), Machine()
    together.run(trace=False)
    found = apart.run(trace=False, apart=True)
    begin = ["start A", "ready A", "start B", "ready B"]
    assert apart.diary[:4] == begin
    assert together.diary[:4] == ["start A", "start B", "ready A", "ready B"]
    assert len(found.pairs) == 8
    assert apart.alive == 0


def test_the_saving_and_the_figures_per_step_come_from_all_blocks() -> None:
    found = Machine().run()
    assert found.saving is not None
    assert found.saving.estimate == pytest.approx(0.5)
    assert (found.step_ns, found.generations, found.peak_bytes, found.input_ns) == (20_000_000, 2, (100, 100), (7, 7))


def test_each_arm_is_traced_once_after_its_turns() -> None:
    machine = Machine()
    found = machine.run()
    assert found.traces == ([Path("0-0")], [Path("1-1")])
    assert machine.diary.count("trace A") == machine.diary.count("trace B") == 1
    assert not any(Machine().run(trace=False).traces)


def test_blocks_are_long_enough_for_the_clock_and_take_few_of_slow_steps() -> None:
    assert Schedule().block_steps(1 * NS_PER_MS) == 300
    assert Schedule().block_steps(20 * NS_PER_MS) == 15
    assert Schedule().block_steps(90 * NS_PER_MS) == 10
    assert Schedule().block_steps(150 * NS_PER_MS) == 5
    assert Schedule().block_steps(400 * NS_PER_MS) == 2
    assert Schedule().block_steps(2 * NS_PER_S) == 2
    assert Schedule().block_steps(-1) == Schedule().usual_steps


def test_the_first_block_of_all_may_take_longer_than_its_warm_up_tells() -> None:
    """It may have lived on what a loader's workers had made before the first step."""
    machine, limits = Machine(), list[int]()

    class Limited(FakeArm):
        def run(self, steps: int, drop: int, limit_ns: int) -> Block:
            limits.append(limit_ns)
            return super().run(steps, drop, limit_ns)

    def side(one: int) -> Callable[[int], FakeArm]:
        return lambda number: Limited(machine, one, number)

    compare(ABTrial(SCHEDULE, Deadline(), fits=True), side(ORIGINAL), side(PATCHED))
    assert limits[0] == SCHEDULE.start_limit_ns
    assert all(limit < SCHEDULE.start_limit_ns for limit in limits[1:])


def test_a_step_that_outlasts_every_recovery_drops_one_at_the_head_of_a_block() -> None:
    assert [Schedule().drops(step_ns) for step_ns in (NS_PER_MS, 100 * NS_PER_MS, 400 * NS_PER_MS)] == [2, 2, 1]
    assert replace(Schedule(), drop_steps=0).drops(NS_PER_S) == 0


def test_a_clear_gain_is_asked_of_each_generation_once_and_not_again() -> None:
    schedule = replace(SCHEDULE, pairs=20, screen_pairs=4)
    machine = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 9.2e6)
    found = machine.run(schedule=schedule, resolution=0.01)
    assert (len(found.pairs), found.generations, found.ending) == (8, 2, Ending.MEASURED)
    small = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 9.6e6)
    assert len(small.run(schedule=schedule, resolution=0.01).pairs) == 20


def test_where_there_is_room_all_processes_start_before_anything_is_measured() -> None:
    machine = Machine()
    found = machine.run(ahead=True)
    assert machine.diary[:4] == ["start A", "start B", "start B", "start A"]
    assert turns(machine.diary) == "AB" + "ABBAABBA" + "AB" + "ABBAABBA"
    assert [pair.generation for pair in found.pairs] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found.traces == ([Path("0-0")], [Path("1-1")])
    assert machine.alive == 0


@pytest.mark.parametrize("number", [2, 3])
def test_a_process_started_ahead_that_hangs_is_started_again_in_its_turn(number: int) -> None:
    machine = Machine(hangs={number})
    found = machine.run(ahead=True)
    assert found.failed is None
    assert (len(found.pairs), found.generations) == (8, 2)
    assert len([entry for entry in machine.diary if entry.startswith("start")]) == 6
    assert machine.alive == 0


def test_memory_that_runs_out_beside_those_started_ahead_is_no_reason_to_alternate() -> None:
    machine = Machine(fails={PATCHED: ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory")})
    found = machine.run(ahead=True)
    starts = [entry for entry in machine.diary if entry.startswith("start")]
    assert starts[:6] == ["start A", "start B", "start B", "start A", "start B", "start A"]
    assert found.crowded  # it ran out again with the two alone
    assert machine.alive == 0


def test_what_hangs_before_its_first_block_leaves_nothing_half_started() -> None:
    machine = Machine(hangs={0})
    found = machine.run(ahead=True)
    assert found.failed is None
    assert (len(found.pairs), found.generations) == (8, 2)
    assert machine.alive == 0


def test_a_saving_that_was_shown_before_is_shown_again_by_one_generation() -> None:
    schedule = replace(SCHEDULE, pairs=20, screen_pairs=4)
    faster = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 9.6e6)
    found = faster.run(schedule=schedule, resolution=0.01, reassures=True)
    assert (len(found.pairs), found.generations, found.ending) == (4, 1, Ending.REASSURED)
    same = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 9.9e6)
    found = same.run(schedule=schedule, resolution=0.01, reassures=True)
    assert found.ending is not Ending.REASSURED


def test_a_control_that_is_precise_enough_ends() -> None:
    schedule = replace(SCHEDULE, pairs=20, screen_pairs=4)
    quiet = Machine(step_ns=lambda _: 10e6).run(schedule=schedule)
    assert (len(quiet.pairs), quiet.generations) == (8, 2)


def test_a_clear_loser_is_stopped_at_the_first_look() -> None:
    found = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 12e6).run(resolution=0.01)
    assert found.ending is Ending.HOPELESS
    assert len(found.pairs) == 4


def test_the_first_look_comes_after_a_few_pairs_and_none_at_the_end() -> None:
    schedule = Schedule()
    assert [pairs for pairs in range(1, 30) if schedule.looks_after(pairs)] == [4, 10, 16]
    assert schedule.looks == 4
    assert Schedule.quick().looks == 2


def test_the_start_of_every_process_is_kept_by_its_side() -> None:
    machine = Machine(starts_ns=[10, 30, 25, 12])
    found = machine.run()
    assert found.starts_ns == ([10, 12], [30, 25])
    assert found.start_ns == 30


def test_nothing_stops_early_while_the_resolution_is_being_measured() -> None:
    found = Machine(step_ns=lambda _: 10e6).run()
    assert found.ending is Ending.MEASURED
    assert len(found.pairs) == 8


def test_programs_that_end_early_are_started_again_until_there_are_enough_pairs() -> None:
    machine = Machine(lasts=90)
    found = machine.run()
    assert len(found.pairs) >= SCHEDULE.pairs
    assert found.generations > SCHEDULE.generations
    assert found.failed is None
    assert all(found.traces), "a window is taken before the turns once the end is known to come early"
    assert machine.alive == 0


def test_a_program_too_short_for_one_pair_gives_none_and_no_endless_loop() -> None:
    machine = Machine(lasts=8)
    found = machine.run()
    assert found.pairs == []
    assert found.saving is None
    assert found.ended_after == 12
    assert machine.alive == 0


@pytest.mark.parametrize("side", [ORIGINAL, PATCHED])
def test_a_failing_side_is_named_and_nothing_is_left_running(side: int) -> None:
    machine = Machine(fails={side: ArmFailed(Trouble.CRASHED, "boom")})
    found = machine.run()
    assert found.failed is not None
    assert found.failed[0] == side
    assert str(found.failed[1]) == "boom"
    assert machine.alive == 0


def test_a_start_that_hangs_once_costs_its_generation_and_twice_the_trial() -> None:
    machine = Machine(hangs=[2])
    found = machine.run()
    assert found.failed is None
    assert (len(found.pairs), found.generations) == (8, 2)
    again = Machine(hangs=[2, 5])
    failed = again.run().failed
    assert failed is not None
    assert (failed[0], failed[1].trouble) == (PATCHED, Trouble.HUNG)
    assert machine.alive == again.alive == 0


def test_a_start_may_take_ten_times_as_long_as_those_before() -> None:
    assert SCHEDULE.next_start_limit_ns(0) == SCHEDULE.start_limit_ns
    assert SCHEDULE.next_start_limit_ns(3 * NS_PER_S) == 90 * NS_PER_S
    assert SCHEDULE.next_start_limit_ns(300 * NS_PER_S) == SCHEDULE.start_limit_ns


def test_when_the_time_is_up_the_pairs_so_far_are_the_answer() -> None:
    now = [0]

    def clock() -> int:
        now[0] += 1
        return now[0]

    machine = Machine()
    found = machine.run(deadline=Deadline(at_ns=20, clock=clock))
    assert found.ending is Ending.OUT_OF_TIME
    assert 0 < len(found.pairs) < SCHEDULE.pairs
    assert machine.alive == 0


def test_a_start_that_says_nothing_takes_half_of_the_time_left_and_is_no_failure_of_the_fix() -> None:
    limits: list[int] = []

    class Silent(FakeArm):
        def ready(self, limit_ns: int) -> Ready:
            limits.append(limit_ns)
            raise ArmFailed(Trouble.HUNG, "no answer in time")

    machine = Machine()
    duel = ABTrial(SCHEDULE, Deadline(at_ns=100 * NS_PER_S, clock=lambda: 0), fits=True)
    found = compare(duel, machine.starter(ORIGINAL), lambda number: Silent(machine, PATCHED, number))
    assert limits == [50 * NS_PER_S]
    assert found.ending is Ending.OUT_OF_TIME
    assert found.failed is None
    assert machine.alive == 0
    # Where the schedule itself gave it up, it has hung.
    found = compare(
        ABTrial(SCHEDULE, Deadline(), fits=True),
        machine.starter(ORIGINAL),
        lambda number: Silent(machine, PATCHED, number),
    )
    assert found.failed is not None


def test_arms_that_start_together_have_the_same_time_whichever_is_waited_for_first() -> None:
    now, limits = [0], list[int]()

    class Slow(FakeArm):
        def ready(self, limit_ns: int) -> Ready:
            limits.append(limit_ns)  # counts from the start, which was at once
            now[0] = max(now[0], 30 * NS_PER_S)
            return super().ready(limit_ns)

    machine = Machine()
    duel = ABTrial(
        replace(SCHEDULE, generations=1), Deadline(at_ns=100 * NS_PER_S, clock=lambda: now[0]), fits=True, trace=False
    )
    starters = (lambda number: Slow(machine, ORIGINAL, number)), (lambda number: Slow(machine, PATCHED, number))
    assert len(compare(duel, *starters).pairs) == SCHEDULE.pairs
    assert limits == [50 * NS_PER_S] * 2


def test_every_pair_is_told_with_the_estimate_once_there_is_one() -> None:
    told: list[tuple[int, bool]] = []
    Machine().run(on_pair=lambda number, _pair, saving: told.append((number, saving is not None)))
    assert told == [(0, False), (1, False), (2, False), *((number, True) for number in range(3, 8))]


def test_two_arms_fit_where_the_device_has_room_for_a_second_with_its_context() -> None:
    gib = 1 << 30
    roomy = Memory(reserved_bytes=10 * gib, free_bytes=60 * gib, device_bytes=80 * gib, host_bytes=1)
    assert fits_twice(roomy) is True
    assert fits_twice(replace(roomy, free_bytes=11 * gib)) is False
    assert fits_twice(Memory()) is None


def test_too_little_memory_is_recognised_by_its_words_or_by_a_kill_that_was_not_ours() -> None:
    assert died_of_memory("RuntimeError: CUDA error: out of memory", 1)
    assert died_of_memory("", -9)
    assert not died_of_memory("ValueError: shapes differ", 1)


def test_long_steps_take_half_the_pairs_of_each_generation_where_these_say_enough() -> None:
    clear = Machine(step_ns=lambda side: 3e9 if side == ORIGINAL else 2.76e9)
    found = clear.run(Schedule(), resolution=0.01)
    assert [pair.generation for pair in found.pairs] == [0, 0, 1, 1]
    assert (found.steps, found.ending) == (2, Ending.MEASURED)
    # Those of the control that are not fine enough go on in the last generation, as many as any.
    rough = iter(range(1000))
    control = Machine(step_ns=lambda _side: 3e9 * (1 + 0.03 * (next(rough) % 7)))
    found = control.run(Schedule(), resolution=None)
    assert len(found.pairs) == Schedule().pairs
    assert found.generations == Schedule().generations


def test_each_window_is_told_when_it_begins() -> None:
    told: list[str] = []
    Machine().run(on_window=told.append)
    assert sorted(told) == ["original", "patched"]


def test_a_program_that_has_had_its_window_has_no_other() -> None:
    machine, known = Machine(), [Path("before")]
    found = machine.run(window=known)
    assert found.traces[0] == known
    assert (len(found.traces[1]), found.windows_taken) == (1, 1)
    assert Machine().run().windows_taken == 2


def test_a_trial_that_the_user_leaves_ends_after_its_pair_and_is_not_tried() -> None:
    skip, machine = SkipRequest(), Machine()
    skip.ask()
    skip.begin()  # what was asked before was about another trial

    def on_pair(number: int, _pair: Pair, _saving: Interval | None) -> None:
        if number == 2:
            skip.ask()

    found = machine.run(on_pair=on_pair, skipped=lambda: skip.asked)
    assert (len(found.pairs), found.ending, machine.alive) == (3, Ending.SKIPPED, 0)
    assert not any(found.traces)
    verdict = skipped(Verdict("pin-memory", Decision.FAILED, "", pairs=len(found.pairs)))
    assert (verdict.decision, verdict.summary) == (
        Decision.NOT_TRIED,
        "skipped at your request after 3 pairs of blocks",
    )


def test_what_is_decided_when_the_user_leaves_it_is_not_skipped() -> None:
    skip = SkipRequest()

    def on_pair(number: int, _pair: Pair, _saving: Interval | None) -> None:
        if number == 3:  # the pair after which it is seen that there is nothing to gain
            skip.ask()

    hopeless = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 20e6)
    found = hopeless.run(resolution=0.01, on_pair=on_pair, skipped=lambda: skip.asked)
    assert (len(found.pairs), found.ending) == (4, Ending.HOPELESS)
