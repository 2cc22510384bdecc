"""Where steps begin and end: marks of the host, projected onto the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diagnose.measure import Measures
from diagnose.measure.steps.steps import period_of
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.schema import RangeKind, Ranges, StepLog

MS = 1_000_000


def spans(trace: Trace) -> list[tuple[int, int]]:
    steps = Measures(trace).steps
    return [(int(start) // MS, int(end) // MS) for start, end in zip(steps.start_ns, steps.end_ns, strict=True)]


def marked(trace: Trace, kind: RangeKind, rows: list[tuple[int, int, str]]) -> Trace:
    """The trace with ranges of one kind instead of its own: start and end in milliseconds, and the name."""
    names = trace.names + tuple(dict.fromkeys(name for _, _, name in rows))
    table = {
        "start_ns": [start * MS for start, _, _ in rows],
        "end_ns": [end * MS for _, end, _ in rows],
        "kind": [kind] * len(rows),
        "name": [names.index(name) for _, _, name in rows],
        "thread": [0] * len(rows),
    }
    return replace(trace, names=names, ranges=Ranges.build(table))


def test_a_step_ends_when_the_work_launched_before_its_mark_ends() -> None:
    ahead = drawn(
        """
        host: lol lol lol
        gpu :  aabbbb aabbbb aabbbb
        step:    |   |   |
        """,
        kernels=dict.fromkeys("ab", "kernel"),
    )
    steps = Measures(ahead).steps
    assert spans(ahead) == [(7, 14), (14, 21)]
    assert (steps.host_start_ns // MS).tolist() == [3, 7]


def test_without_a_device_the_marks_are_the_steps() -> None:
    assert spans(
        drawn("""
        host: oooo.oooo.oooo.
        step:     |    |    |
    """)
    ) == [(4, 9), (9, 14)]


def test_profiler_marks_count_from_the_first() -> None:
    trace = marked(drawn("host: oooooooooo"), RangeKind.STEP, [(0, 4, "ProfilerStep#3"), (5, 9, "ProfilerStep#4")])
    assert spans(trace) == [(0, 5), (5, 9)]
    assert Measures(trace).steps.found_by == "profiler marks"


def test_micro_steps_of_an_accumulation_are_not_steps() -> None:
    trace = drawn("""
        host: oooooooooooooooo
        opt :    O   O   O   O
    """)
    micro = [(start, start + 2, f"ProfilerStep#{start}") for start in range(0, 16, 2)]
    both = Ranges.concatenate([trace.ranges, marked(trace, RangeKind.STEP, micro).ranges])
    assert spans(replace(trace, names=marked(trace, RangeKind.STEP, micro).names, ranges=both)) == [
        (4, 8), (8, 12), (12, 16),
    ]  # fmt: skip


def test_two_optimizers_of_one_iteration_are_one_step() -> None:
    names = ["Optimizer.step#Adam.step", "Optimizer.step#SGD.step"]
    rows = [(start, start + 1, names[number % 2]) for number, start in enumerate(range(3, 24, 3))]
    trace = marked(drawn("host: " + "o" * 24), RangeKind.OPTIMIZER, rows)
    assert spans(trace) == [(7, 13), (13, 19)]


def test_fewer_batches_than_optimizer_steps_make_one_step_a_batch() -> None:
    assert spans(
        drawn("""
        load: ww      ww      ww
        host:   oooooo  oooooo  oooooo
        opt :     O  O    O  O    O  O
    """)
    ) == [(8, 16), (16, 24)]


def test_an_optimizer_that_wraps_another_steps_once() -> None:
    rows = [
        (s, e, "Optimizer.step#A.step") for start in (0, 6, 12) for s, e in ((start, start + 4), (start + 1, start + 2))
    ]
    assert spans(marked(drawn("host: " + "o" * 18), RangeKind.OPTIMIZER, rows)) == [(4, 10), (10, 16)]


def test_annotations_that_repeat_mark_steps() -> None:
    rows = [(start, start + 3, f"iteration {start}") for start in (1, 6, 11, 16)]
    trace = marked(drawn("host: " + "o" * 20), RangeKind.USER, rows)
    assert spans(trace) == [(1, 6), (6, 11), (11, 16)]
    assert Measures(trace).steps.found_by == "nvtx"


def test_annotations_that_come_and_go_mark_nothing() -> None:
    rows = [(start, start + 1, "checkpoint") for start in (0, 2, 15, 17)]
    assert Measures(marked(drawn("host: " + "o" * 20), RangeKind.USER, rows)).steps.found_by == "whole trace"


@pytest.mark.parametrize(("work_ms", "marks"), [(48, True), (50, False)])
def test_annotations_mark_steps_if_a_quarter_of_the_work_falls_where_they_repeat(work_ms: int, marks: bool) -> None:
    rows = [(start, start + 3, "warm-up") for start in (0, 4, 8)]  # they repeat for 12 ms, one period after the last
    drawing = drawn("gpu : " + "ab" * (work_ms // 2), kernels=dict.fromkeys("ab", "kernel"))
    trace = marked(drawing, RangeKind.USER, rows)
    assert (Measures(trace).steps.found_by == "nvtx") is marks


def test_unmarked_steps_are_found_by_the_period_of_the_kernels() -> None:
    picture = "gpu : abcdeabcdeabcdeabcde"
    trace = drawn(picture, kernels={letter: f"{letter}_kernel" for letter in "abcde"})
    assert Measures(trace).steps.found_by == "period"
    assert spans(trace) == [(0, 5), (5, 10), (10, 15)]


@pytest.mark.parametrize(
    ("sequence", "period"), [("abcd" * 4, 4), ("xyzabcdabcdabcdabcdpq", None), ("abcdefghijkl", None)]
)
def test_layers_are_no_steps(sequence: str, period: int | None) -> None:
    assert period_of(np.array([ord(letter) for letter in sequence], np.int32)) == period


def test_a_last_step_that_the_recording_cuts_is_not_counted() -> None:
    steps = Measures(
        drawn(
            """
        host: lolololo lolololo lolololo lo
        gpu :  a b c d  a b c d  a b c d  a
        step: |        |        |        |  |
    """,
            kernels=dict.fromkeys("abcd", "kernel"),
        )
    ).steps
    assert len(steps) == 3
    assert steps.left_out == ("the last recorded step is not counted: the recording cuts it short",)


def test_a_first_step_slowed_by_opening_the_profiler_is_not_counted() -> None:
    steps = Measures(
        drawn("""
        host: oooooooooooooooooooo
        step: |        |   |   |   |
    """)
    ).steps
    assert len(steps) == 3
    assert "2.25 times" in steps.left_out[0]


def test_the_live_log_knows_steps_that_the_trace_does_not_mark() -> None:
    log = {"end_ns": [-6 * MS, 0, 6 * MS, 12 * MS, 18 * MS, 24 * MS], "input_ns": [0] * 6}
    trace = replace(drawn("host: .ooooo.ooooo.ooooo"), step_log=StepLog.build(log))
    assert spans(trace) == [(1, 6), (6, 12), (12, 18)]


def test_a_log_alone_counts_its_steady_steps() -> None:
    ends = [step * 10 * MS for step in range(41)]
    log = StepLog.build({"end_ns": ends, "input_ns": [4 * MS] * 41})
    measures = Measures(Trace(source="log", step_log=log))
    assert measures.step_count == 30
    assert measures.accounting_of(0).idle["input"] == 4 * MS
    assert measures.accounting_of(0).idle["unknown"] == 6 * MS


def thread_of(text: str, **known: Any) -> int:
    return Measures(drawn(text, **known)).thread


def test_the_training_thread_steps_or_loads_or_is_the_busiest() -> None:
    assert thread_of("host  : o\nhost 1: oooo\nload  :  w") == 0
    assert thread_of("host  : o\nhost 1: oooo") == 1
    assert Measures(Trace(source="nothing")).thread == -1


def test_a_recording_begins_once_the_device_has_done_what_was_launched_before_it() -> None:
    """The stream was at work that nobody recorded; another one had a little to do."""
    picture = """
        host : l l l
        gpu 2:  k
        gpu 3:            kkkkkk
        gpu 4:                  k
    """
    steps = Measures(drawn(picture)).steps
    assert (steps.start_ns.tolist(), steps.end_ns.tolist()) == ([11 * MS], [18 * MS])
    (why,) = steps.left_out
    assert why.startswith("the first 11.0 ms are not counted")


def test_a_recording_of_work_that_begins_when_it_is_launched_counts_from_the_host_s_first_call() -> None:
    steps = Measures(drawn("host: ooooooooool\ngpu :            kkkkkk")).steps
    assert (steps.start_ns.tolist(), steps.left_out) == ([0], ())
