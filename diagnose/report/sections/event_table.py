"""The events behind a number of a finding, as a table of words that can be sorted."""

from __future__ import annotations

from diagnose.model import EventTable, Evidence, TraceEvent
from diagnose.report.sections.profile_tables import (
    Cell,
    Column,
    ProfileTable,
    TableRow,
    place_cell,
    with_known_columns,
    words_cell,
)
from diagnose.report.style.kernel_names import short_kernel
from diagnose.report.style.vocabulary import named_count
from diagnose.units import format_ns

_COLUMNS = (
    Column("time", True, 0),
    Column("step", True, 2),
    Column("from step", True, 1),
    Column("event", False, 0),
    Column("lane", False, 4),
    Column("line", False, 3),
)


def event_table(evidence: Evidence, root: str | None = None) -> ProfileTable:
    """The events that a number was taken from, the longest first; steps are counted from 1, as on the timeline."""
    return with_known_columns(_COLUMNS, tuple(_row(event, evidence, root) for event in evidence.events))


def events_in_words(evidence: Evidence) -> str:
    """How many events there are, and how many of them are told: `the 12 longest of 1,020 events`."""
    whole, told = evidence.row_count, len(evidence.events)
    if whole <= told:
        return named_count(whole, "event")
    return f"the {f'{told} ' if told > 1 else ''}longest of {whole:,} events"


def _row(event: TraceEvent, evidence: Evidence, root: str | None) -> TableRow:
    return TableRow(
        (
            Cell(format_ns(event.length_ns), event.length_ns),
            Cell(f"{event.step + 1}", event.step),
            Cell(format_ns(event.since_step_ns), event.since_step_ns),
            words_cell(short_kernel(event.name) if evidence.table is EventTable.DEVICE else event.name),
            words_cell(event.lane),
            place_cell(event.where, root),
        ),
        "other",
        event.name,
        event.where,
    )
