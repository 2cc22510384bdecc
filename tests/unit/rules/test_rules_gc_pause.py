"""What collections cost a step: as often as they come in those recorded, or in all of those that a live run saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.model import Finding, Severity
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import RangeKind, Ranges, StepLog

MS = 1_000_000
WINDOW = drawn("""
    host: olssssolssssolssss       olssssolssss
    gc  :                   ggggggg
    gpu :   kkkk  kkkk  kkkk         kkkk  kkkk
    step:       |     |     |            |     |
""")
"""Five steps, in the fourth of which the device idles for 7 ms more while garbage is collected."""

ENDS = np.array([6, 12, 18, 31, 37])
FURTHER = 76


def live(collections_ms: Sequence[int] = ()) -> Trace:
    """The window at the beginning of a live run, whose steps go on, and collections of 7 ms after the window."""
    log = np.concatenate((ENDS, ENDS[-1] + 6 * np.arange(1, FURTHER + 1))) * MS
    starts = (ENDS[-1] + np.array(collections_ms, np.int64)) * MS
    kind = np.full(len(starts), RangeKind.GC)
    later = Ranges.build({"kind": kind, "start_ns": starts, "end_ns": starts + 7 * MS})
    ranges = Ranges.concatenate([WINDOW.ranges, later]).sorted_by_start()
    return replace(WINDOW, ranges=ranges, step_log=StepLog.build({"end_ns": log}))


def pause(trace: Trace) -> Finding | None:
    found = diagnose([trace], plugins.load_rules()).findings
    return next((one for one in found if one.rule == "gc-pause"), None)


def test_a_collection_in_one_of_few_recorded_steps_may_never_come_again() -> None:
    found = pause(WINDOW)
    assert found is not None
    assert found.recoverable_ns == 0
    assert found.possible_ns is not None
    assert 0.95 * 7 * MS / 4 < found.possible_ns <= 7 * MS / 4


def test_where_none_comes_in_the_rest_of_a_live_run_it_is_one_in_all_of_its_steps() -> None:
    found = pause(live())
    assert found is not None
    assert (found.severity, found.possible_ns) == (Severity.NOTE, None)
    assert found.recoverable_ns < 7 * MS / (FURTHER - 10)


def test_collections_that_come_as_often_in_the_rest_of_a_live_run_cost_what_they_do_in_its_recording() -> None:
    found = pause(live(range(2, 6 * FURTHER, 24)))
    assert found is not None
    assert found.possible_ns is None
    assert 0.95 * 7 * MS / 4 < found.recoverable_ns <= 7 * MS / 4


def test_those_that_come_less_often_cost_as_much_less() -> None:
    found = pause(live(range(2, 6 * FURTHER, 96)))
    assert found is not None
    assert found.possible_ns is None
    assert 0.2 * 7 * MS / 4 < found.recoverable_ns < 0.35 * 7 * MS / 4
