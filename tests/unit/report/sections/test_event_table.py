"""The events behind a number, as a table."""

from __future__ import annotations

from diagnose.model import EventTable, Evidence, Place, TraceEvent
from diagnose.report.sections.event_table import event_table, events_in_words

COPY = TraceEvent("void copy_kernel<float>(int)", 5_000, 2_000, 1, 300, "stream 7", Place("/home/me/train.py", 12))


def words(evidence: Evidence) -> list[str]:
    (row,) = event_table(evidence, "/home/me").rows
    return [cell.words for cell in row.cells]


def test_a_row_has_its_time_its_step_its_place_in_the_step_and_its_line() -> None:
    found = Evidence("copies", 1, "count", (0,), EventTable.DEVICE, 1, (COPY,))
    assert words(found) == ["2.00 µs", "2", "300 ns", "copy_kernel", "stream 7", "train.py:12"]


def test_only_kernels_have_a_short_name() -> None:
    load = TraceEvent("enumerate(DataLoader)#_Next.__next__", 5_000, 2_000, 0, 0, "main")
    found = Evidence("loads", 1, "count", (0,), EventTable.RANGES, 1, (load,))
    assert words(found)[3] == load.name


def test_it_says_how_many_events_are_not_told() -> None:
    assert events_in_words(Evidence("copies", 1, "count", (0,), row_count=1, events=(COPY,))) == "1 event"
    assert events_in_words(Evidence("copies", 1, "count", (0,), row_count=1020, events=(COPY,))) == (
        "the longest of 1,020 events"
    )
