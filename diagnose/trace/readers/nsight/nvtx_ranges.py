"""NVTX ranges in an Nsight Systems database: torch's operators and whatever the program marks itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from diagnose.trace.readers.io.sqlite_file import quote_name
from diagnose.trace.readers.io.sqlite_numbers import ABSENT, Damaged, most_rows
from diagnose.trace.readers.nsight.meaning import looks_like_a_step, mark_of, nvtx_kind
from diagnose.trace.readers.nsight.tables import UNNAMED, Activities, ProcessTables, thread_indices
from diagnose.trace.schema import MISSING, Bool, Int64, RangeKind, Ranges

TABLE = "NVTX_EVENTS"
_PUSHED, _STARTED = 59, 60
_LONGEST_NAME = 1 << 12
_COLUMNS = ("start", "end", "eventType", "globalTid", "text", "textId")


def read_marks(activities: Activities) -> None:
    """Add the ranges of every process to `ops` (where torch wrote them for an operator) and `ranges`."""
    if not activities.database.has(TABLE, "start", "end"):
        return
    most, read = most_rows(activities.database), 0
    try:
        for start, end, kind, thread, text, text_id in activities.database.query(_sql(activities)):
            read += len(start)
            if read > most:
                raise Damaged("it has more rows than the file can hold")
            activities.spend(text)
            kinds = _integers(kind)
            ranges = (kinds == _PUSHED) | (kinds == _STARTED) | (kinds == ABSENT)
            rows = {"start": _integers(start), "end": _integers(end), "thread": _integers(thread)}
            rows |= {"row": np.arange(len(kinds)), "text": _integers(text_id)}
            open_ended = ranges & (rows["end"] == ABSENT) & (kinds != ABSENT)
            activities.unclosed += int(open_ended.sum())
            chosen = ranges & ~open_ended & (rows["end"] != ABSENT)
            _add(activities, activities.sound({name: values[chosen] for name, values in rows.items()}), text)
    except (sqlite3.Error, Damaged) as error:
        activities.damaged[TABLE] = str(error)


def _sql(activities: Activities) -> str:
    """The columns that are there, NULL for the others; texts are cut at a length that no name has."""
    there = activities.database.tables[TABLE]
    columns = [quote_name(name) if name in there else "NULL" for name in _COLUMNS]
    text = _COLUMNS.index("text")
    columns[text] = f"substr({columns[text]}, 1, {_LONGEST_NAME})"
    return f"SELECT {', '.join(columns)} FROM {TABLE}"


def _add(activities: Activities, rows: dict[str, Int64], text: Sequence[object]) -> None:
    ids = rows["text"].tolist()
    written = [text[i] for i in rows["row"].tolist()]
    registered = activities.registered({one for one, words in zip(ids, written, strict=True) if words is None})
    marks = [
        mark_of(words if isinstance(words, str) else registered.get(one, UNNAMED))
        for one, words in zip(ids, written, strict=True)
    ]
    names, texts = activities.names, activities.texts
    name = np.asarray([names[mark.name] for mark in marks], np.int64)
    sequence = np.asarray([mark.sequence for mark in marks], np.int64)
    shapes = np.asarray([texts[mark.shapes] if mark.shapes else MISSING for mark in marks], np.int64)
    is_operator: Bool = np.asarray([mark.is_operator for mark in marks], np.bool_)
    for tables, mine in activities.by_process(rows["thread"]):
        for table, some in ((tables.ops, mine & is_operator), (tables.ranges, mine & ~is_operator)):
            if not some.any():
                continue
            more = {"sequence": sequence[some], "shapes": shapes[some]} if table is tables.ops else {}
            table.append(
                int(some.sum()),
                start_ns=rows["start"][some],
                end_ns=rows["end"][some],
                name=name[some],
                thread=thread_indices(tables, rows["thread"][some]),
                **more,
            )


def with_kinds(ranges: Ranges, names: Sequence[str]) -> Ranges:
    """Tell each range what it marks; those that look like the steps of the program become steps."""
    if len(ranges) == 0:
        return ranges
    kind = np.asarray([nvtx_kind(name) for name in names], np.uint8)[ranges.name]
    if not (kind == RangeKind.STEP).any():
        kind[_steps(ranges, names)] = RangeKind.STEP
    return replace(ranges, kind=kind)


def _steps(ranges: Ranges, names: Sequence[str]) -> Int64:
    """Rows of the steps: ranges with the name of a step that follow each other on one thread. Of several such
    series (`epoch` within `iteration`, micro-steps) the outermost is chosen: the one that covers most time.
    """
    candidate = np.asarray([looks_like_a_step(name) for name in names], np.bool_)[ranges.name]
    best, most_ns = np.empty(0, np.int64), 0
    for thread, word in {(int(ranges.thread[i]), _word(names[ranges.name[i]])) for i in np.flatnonzero(candidate)}:
        same = np.asarray([_word(name) == word for name in names], np.bool_)[ranges.name]
        rows = np.flatnonzero(candidate & same & (ranges.thread == thread))
        starts, ends = ranges.start_ns[rows], ranges.end_ns[rows]
        if len(rows) < 2 or (starts[1:] < ends[:-1]).any():
            continue
        covered = int((ends - starts).sum())
        if covered > most_ns:
            best, most_ns = rows, covered
    return best


def _word(name: str) -> str:
    return name.rstrip("0123456789 _.:#=-/").casefold()


def _integers(values: Sequence[Any]) -> Int64:
    """Whole numbers, and `ABSENT` for whatever is none."""
    return np.asarray([value if type(value) is int else ABSENT for value in values], np.int64)


def has_rows(tables: ProcessTables) -> bool:
    """Whether anything of a process was recorded that a trace is made of."""
    return any(one.rows for one in (tables.device, tables.calls, tables.ops, tables.ranges))
