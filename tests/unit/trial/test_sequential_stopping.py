"""What pairs so far say of the rest of a trial, by a fix whose saving every pair shows alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.ab.sequential import SequentialStopping, worth
from diagnose.trial.process.arm import Block
from diagnose.trial.process.capacity import Memory
from diagnose.verdict import CLEAR_SAVING, LEAST_PAIRS, LEAST_SAVING, SURE_SAVING, Pair

RULE = SequentialStopping(looks=1, resolution=0.02, enough=LEAST_SAVING, needed=None)
CONTROL = replace(RULE, resolution=None)


def pairs(saving: float, count: int = LEAST_PAIRS) -> list[Pair]:
    return [Pair(0, 1e7, (1 - saving) * 1e7) for _ in range(count)]


def scattered(*savings: float) -> list[Pair]:
    return [Pair(0, 1e7, (1 - saving) * 1e7) for saving in savings]


def test_a_clear_saving_settles_a_trial_as_soon_as_there_are_enough_pairs() -> None:
    beyond = CLEAR_SAVING + 0.02  # with the resolution taken off
    assert RULE.settled(pairs(beyond + 0.001))
    assert not RULE.settled(pairs(beyond - 0.001))
    assert not RULE.settled(pairs(beyond + 0.001, LEAST_PAIRS - 1))


def test_a_saving_that_was_shown_before_need_only_be_seen_again() -> None:
    again = replace(RULE, reassures=True)
    assert again.settled(pairs(LEAST_SAVING + 0.021))
    assert not again.settled(pairs(LEAST_SAVING + 0.019))


def test_a_control_is_settled_when_it_is_as_fine_as_is_asked_for() -> None:
    assert CONTROL.settled(pairs(LEAST_SAVING - 0.001))
    assert not CONTROL.settled(pairs(LEAST_SAVING + 0.001))
    assert not CONTROL.settled(pairs(0.0, LEAST_PAIRS - 1))
    assert replace(CONTROL, enough=0.05).settled(pairs(0.04))


def test_a_saving_is_sure_where_every_pair_shows_it_and_nothing_was_shown_before() -> None:
    large = pairs(SURE_SAVING + 0.001)
    assert RULE.sure(large) and RULE.may_be_sure(large)
    assert not RULE.sure(large[1:])
    assert RULE.may_be_sure(large[1:])
    for other in (CONTROL, replace(RULE, reassures=True)):
        assert not other.sure(large) and not other.may_be_sure(large)
    assert not RULE.may_be_sure([*large, *pairs(SURE_SAVING - 0.001, 1)])


@pytest.mark.parametrize(("needed", "saving"), [(None, 0.02), (0.05, 0.05)])
def test_what_cannot_reach_what_it_needs_is_left(needed: float | None, saving: float) -> None:
    """Pairs of one generation leave the luck of its processes open, as much as the machine resolves."""
    rule = replace(RULE, needed=needed)
    assert rule.hopeless(pairs(saving - 0.021)) and not rule.hopeless(pairs(saving - 0.019))
    assert rule.fruitless(pairs(saving - 0.001)) and not rule.fruitless(pairs(saving + 0.001))
    assert not rule.hopeless(pairs(-1.0, LEAST_PAIRS - 1))
    assert not replace(rule, resolution=None).hopeless(pairs(-1.0))
    assert not replace(rule, resolution=None).fruitless(pairs(-1.0))


def test_what_shows_no_saving_is_left_if_it_cannot_be_worth_its_time() -> None:
    """It may yet show a little: the luck of its processes is open."""
    little = pairs(0.01)
    assert not RULE.hopeless(little)
    assert not replace(RULE, worth=0.025).hopeless(little)
    assert replace(RULE, worth=0.035).hopeless(little)
    assert replace(RULE, worth=0.04).hopeless(pairs(0.015)), "less than the machine resolves is not shown"
    small = scattered(0.01, 0.03, 0.01, 0.03)
    assert not RULE.fruitless(small) and replace(RULE, worth=0.05).fruitless(small)
    shown = scattered(0.03, 0.03, 0.03, 0.03)  # that would be kept as it is
    assert not replace(RULE, worth=0.9).hopeless(shown)
    assert not replace(RULE, worth=0.9).fruitless(shown)


def test_something_is_worth_a_tenth_of_its_promise_and_at_most_half_of_a_clear_saving() -> None:
    assert worth(0.1) == pytest.approx(0.01)
    assert worth(0.9) == CLEAR_SAVING / 2


def test_a_trial_is_undecided_where_a_saving_is_seen_that_chance_may_have_made() -> None:
    wide = scattered(0.2, 0.0, 0.2, 0.0)
    assert len(wide) == LEAST_PAIRS
    assert RULE.undecided(wide)
    assert not RULE.undecided(wide[:3])
    assert not RULE.undecided(pairs(0.1)), "it is shown"
    assert not RULE.undecided(pairs(0.0)), "it is none"
    assert not RULE.undecided(pairs(0.015)), "it is less than the machine resolves"
    assert replace(RULE, needed=0.2).undecided(pairs(0.1)), "as much as a finer control would ask for"
    assert not CONTROL.undecided(wide)
    assert not replace(RULE, reassures=True).undecided(wide)


def test_a_comparison_that_begins_anew_has_nothing_of_before_but_longer_blocks() -> None:
    found = Comparison(pairs(0.1), generations=1, steps=2, ending=Ending.HOPELESS)
    found.blocks[0].append(None)  # type: ignore[arg-type]  # whatever it was
    found.begin_anew(6)
    assert (found.pairs, found.blocks, found.generations, found.ending) == ([], ([], []), 0, None)
    assert (found.steps, found.held_steps) == (6, 6)
    assert found.saving is None


def test_the_longest_start_of_either_arm_counts_and_where_none_got_there_it_took_no_time() -> None:
    assert Comparison().start_ns == 0
    assert Comparison(starts_ns=([5, 9], [7])).start_ns == 9


@pytest.mark.parametrize(
    ("peaks", "told"),
    [((7, 9), (7, 9)), ((0, 9), (0, 9)), ((None, 9), None)],  # none held is known; missing is unknown, never zero
)
def test_all_blocks_give_the_figures_together(peaks: tuple[int | None, int], told: tuple[int, int] | None) -> None:
    found = Comparison()
    for generation, total_ns in enumerate((100, 200)):
        original, patched = (
            Block(2, total_ns, input_ns, Memory(peak)) for input_ns, peak in zip((10, 6), peaks, strict=True)
        )
        found.add(generation, {ORIGINAL: original, PATCHED: patched})
    found.sum_up()
    assert (found.step_ns, found.input_ns) == (75, (5.0, 3.0))
    assert found.peak_bytes == told
    assert found.generations == 2
