"""The events behind a number: the longest rows that it was taken from, placed in their step."""

from __future__ import annotations

from diagnose.analysis.evidence_events import MOST_EVENTS, with_events
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.model import EventTable, Evidence
from diagnose.plugins import load
from diagnose.trace.drawn import drawn
from diagnose.units import NS_PER_MS

STEPS = drawn(
    """
    load: www
    host:    ol  l
    gpu :      kkk kk
    step:           |
    """,
    repeat=4,
)


def test_an_event_says_its_name_its_step_its_time_and_its_lane() -> None:
    measures = Measures(STEPS)
    row = 4  # the first of two kernels in the third step that is drawn
    (event,) = with_events(Evidence("kernels", 1, "count", (row,)), measures).events
    assert event.begin_ns == measures.steps.start_ns[event.step] + event.since_step_ns
    assert event.begin_ns < measures.steps.end_ns[event.step]
    assert event.length_ns == 3 * NS_PER_MS
    assert event.lane.startswith("stream ")
    assert event.begin_ns == STEPS.device.start_ns[row]
    assert event.where is None, "nothing in this drawing tells the line"


def test_the_longest_rows_are_told_and_all_are_counted() -> None:
    rows = tuple(range(len(STEPS.device))) * MOST_EVENTS
    found = with_events(Evidence("kernels", 1, "count", rows), Measures(STEPS))
    assert found.row_count == len(rows)
    assert len(found.events) == len(found.rows) == MOST_EVENTS
    lengths = [event.length_ns for event in found.events]
    assert lengths == sorted(lengths, reverse=True)


def test_a_number_without_rows_has_no_events() -> None:
    number = Evidence("loader workers", 0, "count")
    assert with_events(number, Measures(STEPS)) is number


def test_the_waits_for_input_are_behind_the_finding_that_they_are() -> None:
    (finding,) = (one for one in diagnose([STEPS], load()).findings if one.rule == "input-bound")
    number = finding.evidence[0]
    assert number.table is EventTable.RANGES
    assert [event.length_ns for event in number.events] == [3 * NS_PER_MS] * number.row_count
    assert sorted(event.step for event in number.events) == list(range(number.row_count))


def test_what_another_thread_loads_is_no_wait_of_training() -> None:
    ahead = drawn(
        """
        load  : www
        host  :    ol  l
        load 1: wwwwwwww
        gpu   :      kkk kk
        step  :           |
        """,
        repeat=4,
    )
    (finding,) = (one for one in diagnose([ahead], load()).findings if one.rule == "input-bound")
    assert {event.length_ns for event in finding.evidence[0].events} == {3 * NS_PER_MS}
