"""What `diagnose run` says of a program that did not come to its end: how far it came, and what the answer rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose.collect import Recipe
from diagnose.collect.launch import Outcome
from diagnose.collect.progress import StepsEnded, WindowWritten
from diagnose.observe import _shortcomings, _StepCount


def steps(count: int, *, traced: bool) -> _StepCount:
    """A run that took `count` steps on its only rank."""
    seen = _StepCount()
    ends = tuple(range(count))
    seen.see(StepsEnded(rank=0, ends_ns=ends, input_ns=ends))
    if traced:
        seen.see(WindowWritten(rank=0, path=Path("trace.json"), steps=4, steady=""))
    return seen


def said(seen: _StepCount, returncode: int, *, stopped: bool = False) -> tuple[str, ...]:
    outcome = Outcome(returncode=returncode, stopped=stopped, interrupted=False, ranks=(0,))
    return _shortcomings(seen, Recipe(), outcome)


def test_a_program_that_fails_later_is_told_beside_what_was_measured() -> None:
    (words,) = said(steps(61, traced=True), 1)
    assert words == ("the program failed with exit code 1 after 61 steps: what is said here is of its steps until then")


def test_one_that_fails_before_its_trace_is_not_told_to_go_on_alone() -> None:
    (words,) = said(steps(5, traced=False), -11)
    assert words.startswith("the program failed with signal 11 (SIGSEGV) after 5 steps, before 4 steady ones")


def test_who_failed_is_not_told_to_run_for_longer() -> None:
    (failed,), (short,) = said(steps(5, traced=False), 1), said(steps(5, traced=False), 0)
    assert "for longer" not in failed and "to trace sooner, lower --warmup" in failed
    assert "let it run for longer, or lower --warmup" in short


def test_a_pass_over_the_data_before_training_is_no_step() -> None:
    seen = steps(200, traced=False)
    seen.see(StepsEnded(rank=0, ends_ns=(0, 1), input_ns=(0, 0), anew=True))
    seen.see(StepsEnded(rank=0, ends_ns=(2,), input_ns=(0,)))
    (words,) = said(seen, 1)
    assert "after 3 steps" in words


@pytest.mark.parametrize("returncode", [-9, 137])
def test_who_is_killed_may_have_come_further(returncode: int) -> None:
    """The log is written twice a second: the last of it is lost."""
    (words,) = said(steps(1, traced=False), returncode)
    assert "SIGKILL" in words and "after at least 1 step, before" in words


def test_the_end_that_was_asked_for_is_no_failure() -> None:
    assert said(steps(61, traced=True), -15, stopped=True) == ()
    assert said(steps(61, traced=True), 0) == ()
