"""Looking at files ends with the time that is given for it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import libcst as cst
import pytest

from diagnose.compose.stack.asking_time import EACH_NS, LATE_NS, LEAST_NS, PROMISING, SHARE, AskingTime
from diagnose.source.tree.syntax import Source
from diagnose.source.tree.time_limit import TookTooLong, check_time, time_limit


def ticking(step_ns: int) -> Callable[[], int]:
    """A clock that goes on by so much each time that it is read."""
    now: Iterator[int] = iter(range(0, 10**15, step_ns))
    return lambda: next(now)


def test_without_a_limit_nothing_ends() -> None:
    check_time()
    with time_limit(None):
        check_time()


def test_a_look_at_a_file_ends_when_the_time_is_over() -> None:
    source = Source("f(1)\n")
    with time_limit(3, ticking(1)), pytest.raises(TookTooLong):
        while True:
            list(source.every(cst.Call))
    assert len(list(source.every(cst.Call))) == 1


def test_a_limit_holds_within_its_block_alone() -> None:
    with pytest.raises(TookTooLong), time_limit(0, ticking(1)):
        check_time()
    check_time()


def test_garbage_is_collected_again_after_a_look() -> None:
    with time_limit(None):
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with time_limit(None):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_fixer_whose_time_is_over_is_told_of_and_not_asked_again() -> None:
    asking = AskingTime(clock=ticking(EACH_NS))
    with pytest.raises(TookTooLong, match="took longer than 10"), asking.limited("slow"):
        check_time()
    with pytest.raises(TookTooLong, match="took longer than 10"), asking.limited("slow"):
        pytest.fail("it is not asked again")
    with asking.limited("other"):
        pass


def test_all_fixers_share_a_part_of_the_budget() -> None:
    assert AskingTime.of(None).left_ns is None
    assert AskingTime.of(LEAST_NS).left_ns == LEAST_NS
    whole = SHARE * EACH_NS
    asking = AskingTime.of(whole)
    assert asking.left_ns == EACH_NS
    asking.clock = ticking(EACH_NS)
    with asking.limited("first"):
        pass
    with pytest.raises(TookTooLong, match="no time was left"), asking.limited("second"):
        pytest.fail("there is no time for it")


def test_what_promises_much_is_asked_though_all_time_for_asking_is_over() -> None:
    """Of a budget of two minutes that ended after one, 33 % of a step were left untried for want of 12 s of asking."""
    asking = AskingTime(left_ns=0, clock=ticking(1))
    with pytest.raises(TookTooLong), asking.limited("small", PROMISING / 2):
        pytest.fail("there is no time for it")
    with asking.limited("large", PROMISING):
        check_time()
    assert AskingTime.of(8 * EACH_NS).promising_ns == 2 * EACH_NS
    assert AskingTime.of(EACH_NS).promising_ns == EACH_NS


def test_no_fixer_is_asked_for_long_beyond_the_budget_whatever_it_promises() -> None:
    """One that was begun before the end has no more time than one that is asked then."""
    now_ns, budget_ns = 0, 100 * EACH_NS
    asking = AskingTime.of(budget_ns, lambda: now_ns)
    now_ns = budget_ns - 1
    with asking.limited("first", PROMISING):
        now_ns += LATE_NS
        check_time()
    with pytest.raises(TookTooLong), asking.limited("second", PROMISING):
        now_ns += 1
        check_time()
    with pytest.raises(TookTooLong, match="no time was left"), asking.limited("third", PROMISING):
        pytest.fail("there is no time for it")
