"""Analysis that outlasts a deadline is interrupted, and nothing after it is."""

from __future__ import annotations

import contextlib

import pytest

from diagnose.trial.interruption import TimeIsUp, interrupted_at
from diagnose.trial.schedule import Deadline
from diagnose.units import NS_PER_MS, NS_PER_S


def computes_for_ever() -> None:
    number = 0
    while True:
        number += 1


def test_what_computes_is_interrupted_and_no_error_of_its_own_hides_that() -> None:
    def takes_all_errors_for_its_own() -> None:
        with contextlib.suppress(Exception):
            computes_for_ever()

    with pytest.raises(TimeIsUp), interrupted_at(Deadline.within(10 * NS_PER_MS)):
        takes_all_errors_for_its_own()


def test_nothing_begins_after_the_deadline() -> None:
    with pytest.raises(TimeIsUp), interrupted_at(Deadline(0)):
        pytest.fail("this was begun")


@pytest.mark.parametrize("deadline", [Deadline(), Deadline(1, lambda: 0), Deadline.within(10_000 * NS_PER_S)])
def test_what_ends_in_time_is_left_alone(deadline: Deadline) -> None:
    with interrupted_at(deadline):
        answer = sum(range(1000))
    assert answer == 499_500


def test_an_interruption_that_comes_too_late_comes_never() -> None:
    for _ in range(50):
        with contextlib.suppress(TimeIsUp), interrupted_at(Deadline.within(NS_PER_MS // 10)):
            sum(range(3000))
        assert sum(range(3000)) == 4_498_500
