"""The events of the recording behind a number: which rows it was taken from, when they ran, where, and from which line.

with_events(evidence, measures)  →  the evidence with its longest events
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.profile.step_lanes import thread_name
from diagnose.measure.profile.work_sources import place_of
from diagnose.model import EventTable, Evidence, Place, TraceEvent
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals

MOST_EVENTS = 12
"""Events that a finding carries for each of its numbers: a table that can be read; chosen, not measured. What a number
rests on is all of its rows, whose count is told."""


def with_events(evidence: Evidence, measures: Measures) -> Evidence:
    """The evidence with the longest of the rows that it was taken from, as events; unchanged where it has none."""
    if not evidence.rows:
        return evidence
    table = getattr(measures.trace, evidence.table)
    rows = np.asarray(evidence.rows, np.int64)
    order = np.argsort(table.start_ns[rows] - table.end_ns[rows], kind="stable")
    longest = rows[order[:MOST_EVENTS]]
    return replace(
        evidence,
        rows=tuple(longest.tolist()),
        row_count=len(rows),
        events=tuple(_event(evidence.table, row, measures) for row in longest.tolist()),
    )


def require_rows(evidence: Iterable[Evidence], trace: Trace) -> None:
    """Raise IndexError where a number names rows that its table does not have."""
    for number in evidence:
        have = len(getattr(trace, number.table))
        if number.rows and not (min(number.rows) >= 0 and max(number.rows) < have):
            raise IndexError(f"`{number.measure}` names rows beyond the {have} of the table `{number.table}`")


def _event(kind: EventTable, row: int, measures: Measures) -> TraceEvent:
    trace, steps = measures.trace, measures.steps
    table = getattr(trace, kind)
    begin, end, name = int(table.start_ns[row]), int(table.end_ns[row]), int(table.name[row])
    step = max(int(np.searchsorted(steps.start_ns, begin, side="right")) - 1, 0)
    return TraceEvent(
        name=trace.names[name] if name >= 0 else "unnamed",
        begin_ns=begin,
        length_ns=end - begin,
        step=step,
        since_step_ns=begin - int(steps.start_ns[step]) if len(steps) else 0,
        lane=_lane(kind, row, measures),
        where=_place(kind, row, Intervals.of([begin], [end]), measures),
    )


def _lane(kind: EventTable, row: int, measures: Measures) -> str:
    """The stream or the thread of an event, as the timeline names it."""
    if kind is EventTable.DEVICE:
        return f"stream {measures.trace.device.stream[row]}"
    return thread_name(measures, int(getattr(measures.trace, kind).thread[row]))


def _place(kind: EventTable, row: int, span: Intervals, measures: Measures) -> Place | None:
    """The line that an event was caused from: that of its operator, else the one the host was in."""
    if kind is EventTable.DEVICE:
        return place_of(measures, measures.op_of_work[[row]])
    if kind is EventTable.OPS:
        return place_of(measures, np.array([row], np.int64))
    return next(iter(measures.places(span)), None)
