"""Sampled stacks merged to boxes, and counters thinned to series: nothing is lost but what is too small to see."""

from __future__ import annotations

from dataclasses import replace

from diagnose.measure.profile.counter_series import MOST_POINTS, counter_series
from diagnose.measure.profile.sampled_calls import MOST_CALLS, sampled_calls
from diagnose.trace import StackFrame, Trace
from diagnose.trace.schema import Counters, Samples, StepLog

MAIN = StackFrame("train.py", 9, "main")
LOAD, STEP, ADAM = (StackFrame("train.py", line, name) for line, name in ((3, "load"), (5, "step"), (6, "adam")))
STACKS = ((LOAD, MAIN), (STEP, MAIN), (ADAM, STEP, MAIN))


def sampled(stacks: list[int], known: tuple[tuple[StackFrame, ...], ...] = STACKS) -> Trace:
    samples = Samples.build({"time_ns": list(range(len(stacks))), "stack": stacks})
    return replace(Trace(source="here"), stacks=known, samples=samples)


def test_calls_with_the_same_callers_are_one_box() -> None:
    calls = sampled_calls(sampled([0, 1, 2, 2, 2]))
    assert [(one.depth, one.begin, one.samples, one.function) for one in calls] == [
        (0, 0, 5, "main"),
        (1, 0, 4, "step"),
        (1, 4, 1, "load"),
        (2, 0, 3, "adam"),
    ]


def test_the_first_steps_of_a_live_run_are_left_out() -> None:
    trace = sampled([0] * 50 + [1] * 50)
    trace = replace(trace, step_log=StepLog.build({"end_ns": [5 * step for step in range(1, 21)]}))
    (main, step) = sampled_calls(trace)
    assert (main.samples, step.function, step.samples) == (50, "step", 50)


def test_the_smallest_boxes_go_first_where_there_are_too_many() -> None:
    rare = tuple((StackFrame("train.py", line, "rare"), MAIN) for line in range(2 * MOST_CALLS))
    calls = sampled_calls(sampled([*range(len(rare)), *[len(rare)] * 9], (*rare, (LOAD, MAIN))))
    assert [one.function for one in calls] == ["main", "load"]


def test_without_samples_there_are_no_calls() -> None:
    assert sampled_calls(Trace(source="here")) == ()


def test_a_long_series_is_thinned_by_means() -> None:
    count = 10 * MOST_POINTS
    table = Counters.build(
        {
            "time_ns": [1_795_253_607_623_133_737 + at for at in range(count)],
            "name": [0] * count,
            "device": [1] * count,
            "value": [float(at) for at in range(count)],
        }
    )
    (series,) = counter_series(replace(Trace(source="here"), names=("gpu.power_watts",), counters=table))
    assert (series.name, series.device, len(series.value)) == ("gpu.power_watts", 1, MOST_POINTS)
    assert series.value[0] == sum(range(10)) / 10
    assert series.time_ns[0] == 4


def test_what_was_read_twice_is_no_series() -> None:
    table = Counters.build({"time_ns": [1, 2], "name": [0, 0], "device": [0, 0], "value": [1.0, 2.0]})
    assert counter_series(replace(Trace(source="here"), names=("host.load",), counters=table)) == ()
