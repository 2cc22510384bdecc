"""The pace of steps that no profiler lengthened, where a program goes on at another one than it began with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diagnose.measure.steps.pace import FEWEST, watched_step_ns
from diagnose.model import Facts
from diagnose.rule import Trace
from diagnose.trace.schema import StepLog

MS = 1_000_000


def logged(later_ms: float, steps: int, before_ms: float = 27.0) -> Trace:
    """Ten steps before a window of four, which took 500 ms each, and so many after it."""
    lengths = [before_ms] * 10 + [500.0] * 4 + [later_ms] * steps
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    log = StepLog.build({"end_ns": ends})
    facts = Facts(step_ns_watched=round(before_ms * MS))
    return replace(Trace(source="log", step_log=log), facts=facts, window_ns=(int(ends[9]), int(ends[13])))


def test_the_steady_steps_before_the_window_tell() -> None:
    assert watched_step_ns(logged(27.0, 100)) == 27 * MS
    assert watched_step_ns(logged(38.0, 100)) == 27 * MS  # a profiler that was at work leaves some of its cost


def test_those_after_it_tell_where_the_program_went_on_more_slowly() -> None:
    assert watched_step_ns(logged(236.0, 100)) == 236 * MS


def test_a_host_that_runs_ahead_of_its_device_again_is_no_faster_than_it_was() -> None:
    assert watched_step_ns(logged(3.0, 100)) == 27 * MS


def test_a_few_steps_after_it_tell_nothing() -> None:
    assert watched_step_ns(logged(236.0, FEWEST)) == 27 * MS


def test_where_nobody_watched_nothing_is_known() -> None:
    assert watched_step_ns(replace(logged(236.0, 100), facts=Facts())) is None
    assert watched_step_ns(replace(logged(236.0, 100), window_ns=None)) == 27 * MS
