"""When a duel ends before it has all its pairs: what is out of patience, and what shows nothing to build on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_arms import SCHEDULE, Machine

from diagnose.trial.ab.aa_control import ASSUMED, AAControls
from diagnose.trial.ab.result import ORIGINAL, Comparison, Ending
from diagnose.trial.ab.sequential import worth
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import CLEARING_NS, Deadline
from diagnose.verdict import CLEAR_SAVING, LEAST_PAIRS, Pair, estimate

PLAN = replace(SCHEDULE, pairs=20, look_every=6)
FULL = Memory(peak_bytes=100, reserved_bytes=1 << 40, free_bytes=0, device_bytes=1 << 40, host_bytes=1)


def restless() -> Callable[[int], float]:
    """Every block takes another time, so that no control is ever precise."""
    times = itertools.cycle([10e6, 17e6, 13e6, 23e6, 11e6])
    return lambda _side: next(times)


def test_a_control_out_of_patience_has_the_fewest_pairs_of_each_generation() -> None:
    assert len(Machine(step_ns=restless()).run(schedule=PLAN).pairs) == 20
    found = Machine(step_ns=restless()).run(schedule=PLAN, patience=Deadline(5, lambda: 5))
    assert (len(found.pairs), found.generations) == (2 * PLAN.screen_pairs, 2)
    assert found.ending is Ending.MEASURED  # what it saw by then is an answer


def generations_within(end: int, *, control: bool, step_ns: Callable[[int], float] | None = None) -> int:
    """Of a duel on a clock that ticks with every start, warm-up and block: 26 times in a generation of short steps."""
    machine = Machine(step_ns=step_ns or restless())
    deadline = Deadline(end, lambda: len(machine.diary))
    return machine.run(schedule=PLAN, control=control, deadline=deadline, trace=False).generations


def test_a_control_has_one_generation_where_another_would_take_more_than_a_third_of_what_is_left() -> None:
    assert generations_within(26 + 3 * 26, control=True) == 2
    assert generations_within(26 + 3 * 26 - 1, control=True) == 1
    assert generations_within(26 + 3 * 26 - 1, control=False) == 2  # what a fix saves is shown twice or not at all


def test_a_control_of_long_steps_has_as_many_generations_as_the_fewest_pairs_take() -> None:
    """One generation has two pairs of these, of which nothing can be said."""
    assert generations_within(20, control=True, step_ns=lambda _side: 1.2e9) == 2


def test_a_control_of_one_generation_leaves_the_luck_of_processes_assumed() -> None:
    pairs = [Pair(number % 2, 1e7, 1e7) for number in range(4)]
    controls = AAControls(most_pairs=20)
    assert controls.resolution == ASSUMED
    controls.saw(Comparison([replace(pair, generation=0) for pair in pairs], generations=1))
    assert controls.resolution == ASSUMED
    controls.saw(Comparison(pairs, generations=2))
    assert controls.resolution == 0


def test_a_control_is_asked_for_where_it_can_let_a_fix_pass_and_be_finer() -> None:
    def saving(share: float) -> Comparison:
        return Comparison([Pair(number % 2, 1e7, (1 - share) * 1e7) for number in range(4)], generations=2)

    controls = AAControls(most_pairs=4)
    assert [controls.wants_a_look(saving(share)) for share in (0.005, 0.03, 0.06)] == [False, True, False]
    assert not controls.wants_a_look(replace(saving(0.03), ending=Ending.SURE))
    assert not controls.wants_a_look(replace(saving(0.03), ending=Ending.OUT_OF_TIME))
    controls.saw(saving(0.04))
    assert not controls.wants_a_look(saving(0.03))  # none is finer than one that had all its pairs


def test_patience_is_shared_by_the_generations() -> None:
    machine = Machine(step_ns=restless())
    seen = machine.run(
        schedule=PLAN, patience=Deadline(14, lambda: sum(mark == "B" for mark in machine.diary)), trace=False
    )
    # Of fourteen blocks of either side, one settles each generation.
    assert [sum(pair.generation == number for pair in seen.pairs) for number in (0, 1)] == [6, 6]


def test_a_control_that_alternates_has_as_many_pairs_as_an_interval_needs() -> None:
    machine = Machine(step_ns=restless(), memory=FULL)
    found = machine.run(schedule=PLAN, fits=None, patience=Deadline(5, lambda: 5))
    assert found.alternated
    assert len(found.pairs) == LEAST_PAIRS
    assert machine.alive == 0


def test_processes_that_show_nothing_are_followed_by_others_before_they_have_all_their_pairs() -> None:
    none = Machine(step_ns=lambda _side: 10e6).run(schedule=PLAN, resolution=0.02)
    assert (len(none.pairs), none.generations, none.ending) == (8, 2, Ending.HOPELESS)


@pytest.mark.parametrize("resolution", [0.02, 0.3])
def test_however_coarse_the_machine_no_change_is_clear_after_two_generations(resolution: float) -> None:
    assert len(Machine(step_ns=lambda _side: 10e6).run(schedule=PLAN, resolution=resolution).pairs) == 8


def saves_about_half_a_percent() -> Machine:
    times = itertools.cycle([9.8e6, 10.05e6, 9.9e6, 10.0e6])
    return Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else next(times))


def test_what_saves_far_less_than_it_promised_ends_where_time_is_counted() -> None:
    """It may save a percent and more, of 30 % that were promised."""
    patient = saves_about_half_a_percent().run(schedule=PLAN, resolution=0.005)
    assert len(patient.pairs) > 8
    hurried = saves_about_half_a_percent().run(schedule=PLAN, resolution=0.005, worth=worth(0.3))
    assert hurried.ending is Ending.HOPELESS
    assert len(hurried.pairs) <= 8


def test_what_is_sure_to_save_little_is_not_left_for_having_promised_much() -> None:
    found = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 9.85e6).run(
        schedule=PLAN, resolution=0.001, worth=worth(0.9)
    )
    assert found.ending is Ending.MEASURED
    assert len(found.pairs) == 20


def test_a_promise_is_no_reason_to_ask_for_more_than_half_of_a_clear_saving() -> None:
    assert worth(0.0) == 0
    assert worth(0.1) == pytest.approx(0.01)
    assert worth(0.9) == CLEAR_SAVING / 2


def test_a_saving_that_only_other_processes_show_has_all_the_pairs_that_are_left() -> None:
    """The luck of one generation may hide it."""
    machine = Machine()
    machine.step_ns = lambda side: 9.2e6 if side != ORIGINAL and machine.diary.count("start B") > 1 else 10e6
    found = machine.run(schedule=PLAN, resolution=0.02)
    assert found.ending is Ending.MEASURED
    assert sum(pair.generation == 1 for pair in found.pairs) == 16
    assert (len(found.pairs), found.generations) == (40, 4), "and as many again, since two disagree"


@pytest.mark.parametrize(("step_ns", "pairs"), [(1e7, 4), (1.2e9, 4)])
def test_a_saving_beyond_all_luck_needs_no_other_processes(step_ns: float, pairs: int) -> None:
    """Also of long steps, of which a generation has two pairs otherwise; and both windows are taken."""
    machine = Machine(step_ns=lambda side: step_ns if side == ORIGINAL else 0.8 * step_ns)
    found = machine.run(schedule=PLAN, resolution=ASSUMED)
    assert (len(found.pairs), found.generations, found.ending) == (pairs, 1, Ending.SURE)
    assert all(found.traces)
    assert machine.alive == 0


def test_a_saving_that_processes_might_differ_by_is_shown_by_others_too() -> None:
    found = Machine(step_ns=lambda side: 1e7 if side == ORIGINAL else 0.91e7).run(schedule=PLAN, resolution=ASSUMED)
    assert (found.generations, found.ending) == (2, Ending.MEASURED)


def test_a_saving_is_looked_at_again_after_some_pairs() -> None:
    times = itertools.chain([10e6, 5e6, 5e6, 5e6], itertools.repeat(5e6))
    machine = Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else next(times))
    found = machine.run(schedule=replace(PLAN, pairs=20), resolution=ASSUMED)
    assert found.ending is Ending.SURE
    assert len(found.pairs) in {4, 7, 10}


def test_equal_parts_of_what_is_left_of_a_deadline() -> None:
    assert Deadline().part(2).at_ns is None
    assert Deadline(30, lambda: 10).part(2).at_ns == 20
    assert Deadline(30, lambda: 40).part(2).at_ns == 40
    assert Deadline(30, lambda: 40).part(2).passed


def test_clearing_away_has_little_more_than_what_is_left_of_a_budget() -> None:
    assert Deadline().closing_ns is None
    assert Deadline(30, lambda: 10).closing_ns == 20 + CLEARING_NS
    assert Deadline(30, lambda: 40).closing_ns == CLEARING_NS


def saves_a_tenth_or_not(generations: int = 2) -> Machine:
    """A tenth on the whole, of which the first so many generations leave open whether it is anything at all."""
    machine = Machine()
    times = itertools.cycle([7e6, 11e6, 8e6, 9.5e6, 10.5e6])

    def step_ns(side: int) -> float:
        early = machine.diary.count("start B") <= generations
        return 10e6 if side == ORIGINAL else next(times) if early else 9e6

    machine.step_ns = step_ns
    return machine


def test_what_pairs_leave_undecided_has_as_many_again_once() -> None:
    found = saves_a_tenth_or_not().run(schedule=PLAN, resolution=ASSUMED)
    assert (len(found.pairs), found.generations, found.looks) == (40, 4, 2)
    assert found.saving is not None
    assert found.saving.low > estimate(found.pairs[:20]).low
    assert found.saving.low < estimate(found.pairs).low, "each of two looks has half of the error"
    never = saves_a_tenth_or_not(generations=9).run(schedule=PLAN, resolution=ASSUMED)
    assert (len(never.pairs), never.generations) == (40, 4)


@pytest.mark.parametrize("more", [{"control": True, "resolution": None}, {"reassures": True}])
def test_a_control_and_a_saving_that_was_shown_before_have_no_more_pairs(more: dict[str, object]) -> None:
    found = saves_a_tenth_or_not().run(schedule=PLAN, **{"resolution": ASSUMED, **more})
    assert len(found.pairs) <= 20


@pytest.mark.parametrize(("spare", "pairs"), [(0, 20), (4 * 26, 40)])
def test_more_pairs_take_at_most_half_of_the_time_that_is_left(spare: int, pairs: int) -> None:
    """On a clock that ticks 26 times in a generation."""
    machine = saves_a_tenth_or_not()
    deadline = Deadline(2 * 26 + 4 + spare, lambda: len(machine.diary))
    found = machine.run(schedule=PLAN, resolution=ASSUMED, deadline=deadline, trace=False)
    assert len(found.pairs) == pairs
    assert found.ending is Ending.MEASURED
