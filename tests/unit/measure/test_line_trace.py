"""Carrying the lines of one followed step over to the counted ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diagnose.measure import Measures
from diagnose.measure.lines.line_trace import matched
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Samples

MS = 1_000_000
few = st.lists(st.integers(0, 3), max_size=12)


def numbers(text: str) -> np.typing.NDArray[np.int64]:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def test_equal_sequences_are_matched_element_by_element() -> None:
    assert matched(numbers("abab"), numbers("abab")).tolist() == [0, 1, 2, 3]


def test_what_only_one_has_is_left_out() -> None:
    assert matched(numbers("abxcd"), numbers("abcd")).tolist() == [0, 1, -1, 2, 3]
    assert matched(numbers("abcd"), numbers("abxcd")).tolist() == [0, 1, 3, 4]
    assert matched(numbers("abXYcdZe"), numbers("abWcdVVe")).tolist() == [0, 1, -1, -1, 3, 4, -1, 7]


@given(few, few)
def test_matches_are_alike_and_in_order(first: list[int], second: list[int]) -> None:
    here, there = np.array(first, np.int64), np.array(second, np.int64)
    places = matched(here, there)
    found = places >= 0
    assert (here[found] == there[places[found]]).all()
    assert (np.diff(places[found]) > 0).all()


def test_very_different_long_sequences_are_given_up() -> None:
    here, there = np.arange(0, 50_000), np.arange(25_000, 80_000)
    assert (matched(here, there) == -1).all()


def lines(*numbers: int) -> list[StackFrame]:
    return [StackFrame("train.py", number, f"at_{number}") for number in numbers]


def followed(picture: str, **stacks: list[StackFrame]) -> Measures:
    """Of a drawing whose lane `line` shows the step that is followed, after the counted ones."""
    trace = drawn(picture, ops={"a": "aten::mul", "b": "aten::mm", "x": "aten::save"}, stacks=stacks)
    return Measures(replace(trace, lines=trace.samples, samples=Samples.build()))


# In each step one kernel and, after some Python, another; then the step that is followed.
ALIKE = """
    op  :  aaa   bbb   aaa   bbb   aaa   bbb    aaaa   bbbb
    host:   l     l     l     l     l     l       l     l
    gpu :    kk    kkk   kk    kkk   kk    kkk     kk    kkk
    line:                                      m      n    e
    step:            |           |           |
"""


def op_rows(trace: Trace, name: str) -> np.typing.NDArray[np.int64]:
    return np.flatnonzero(trace.ops.name == trace.names.index(name))


def test_operators_of_counted_steps_have_the_lines_of_the_followed_one() -> None:
    measures = followed(ALIKE, m=lines(10), n=lines(20, 11), e=[])
    assert len(measures.followed.steps) == measures.step_count
    assert [place.line for place in places_of_ops(measures, op_rows(measures.trace, "aten::mul"))] == [10]
    assert [place.line for place in places_of_ops(measures, op_rows(measures.trace, "aten::mm"))] == [20, 11]


def test_each_line_counts_by_the_device_time_of_its_operators() -> None:
    measures = followed(ALIKE, m=lines(10), n=lines(20), e=[])
    every = np.arange(len(measures.trace.ops))
    assert [(place.line, round(place.share or 0, 1)) for place in places_of_ops(measures, every)] == [
        (20, 0.6),
        (10, 0.4),
    ]


def test_time_between_operators_belongs_to_the_lines_between_the_same_operators() -> None:
    measures = followed(ALIKE, m=lines(10), n=lines(20), e=[])
    start = measures.trace.ops.start_ns
    before_the_second = Intervals.of([int(start[3]) - 2 * MS], [int(start[3])])
    assert {place.line for place in measures.places(before_the_second)} == {10, 20}
    within_the_first = Intervals.of([int(start[2])], [int(start[2]) + MS])
    assert [place.line for place in measures.places(within_the_first)] == [10]


def test_a_step_that_does_something_else_has_no_lines() -> None:
    measures = followed(
        """
        op  :  aaa   bbb   xxx   xxx   aaa   bbb    aaaa   bbbb
        host:   l     l     l     l     l     l       l     l
        gpu :    kk    kkk   kk    kkk   kk    kkk     kk    kkk
        line:                                      m      n    e
        step:            |           |           |
        """,
        m=lines(10),
        n=lines(20),
        e=[],
    )
    assert places_of_ops(measures, op_rows(measures.trace, "aten::save")) == ()
    assert [place.line for place in places_of_ops(measures, op_rows(measures.trace, "aten::mm"))] == [20]


def test_without_a_followed_step_nothing_is_invented() -> None:
    measures = followed(ALIKE.replace("m      n    e", "              "))
    assert not measures.followed
    assert places_of_ops(measures, op_rows(measures.trace, "aten::mm")) == ()


def test_a_line_counts_once_whatever_functions_are_within_it() -> None:
    within = [StackFrame("train.py", 10, "main.<locals>.<genexpr>"), *lines(11)]
    around = [StackFrame("train.py", 10, "main"), *lines(11)]
    measures = followed(ALIKE, m=within, n=around, e=[])
    (place,) = measures.places(measures.counted)
    assert (place.line, place.function, place.share) == (10, "main", 1.0)
