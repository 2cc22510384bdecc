"""Reads what torch.profiler exports: Kineto's Chrome JSON, plain or gzip, of every year since 2020.

    {"schemaVersion": 1, "deviceProperties": […], "distributedInfo": {…}, "baseTimeNanoseconds": …, "traceEvents": […]}

or the bare array of events. A file into which several ranks were merged gives one trace for each.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.kineto_chunks import CHUNK_BYTES, KinetoStream, Losses
from diagnose.trace.readers.kineto_events import Event, Metadata, X
from diagnose.trace.readers.kineto_tables import RankTables
from diagnose.trace.readers.kineto_time import Inexact
from diagnose.trace.readers.kineto_trace import Header, trace_of
from diagnose.trace.readers.reader import Reader
from diagnose.units import format_bytes

_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"baseTimeNanoseconds"', b'"distributedInfo"')
_ARRAY = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\[\s*(?:(?:\{\s*\}|null)\s*,\s*)*(?:\]|\{.{0,2000}?"(?:ph|ts)"\s*:)', re.DOTALL
)
_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_NOT_KINETO = (b'"rocprofiler-sdk-tool"',)

Ranks = dict[int | None, RankTables]


def read(path: Path, chunk_bytes: int = CHUNK_BYTES) -> list[Trace]:
    """The traces of a file, one a rank. Raises NotATrace when nothing of torch.profiler is in it."""
    stream = KinetoStream(path, chunk_bytes)
    ranks: Ranks = {}
    with _no_collector():
        for events in stream:
            try:
                _take(events, ranks, stream.merged)
            except Inexact:
                _take(stream.exactly(), ranks, stream.merged)
    header = Header.of(stream.header)
    traces = [trace_of(path, tables, header, rank) for rank, tables in ranks.items()]
    traces = [trace for trace in traces if trace.window_ns is not None]
    if not traces:
        raise NotATrace(path, _why_empty(stream, ranks))
    warnings = _loss_warnings(path, stream.losses)
    return [replace(traces[0], warnings=(*warnings, *traces[0].warnings)), *traces[1:]]


def _take(events: list[Event], ranks: Ranks, merged: bool) -> None:
    for rank, group in _by_rank(events).items() if merged else ((None, events),):
        tables = ranks.get(rank) or ranks.setdefault(rank, RankTables())
        tables.add(group)


def _by_rank(events: list[Event]) -> dict[int | None, list[Event]]:
    """Events of a merged file by the rank in their arguments, with the process ids they had before."""
    groups: dict[int | None, list[Event]] = {}
    for event in events:
        if isinstance(event, X | Metadata):
            if event.args.pid_raw is not None:
                event.pid = event.args.pid_raw
            groups.setdefault(event.args.rank if isinstance(event.args.rank, int) else None, []).append(event)
    return groups


@contextmanager
def _no_collector() -> Iterator[None]:
    """The cyclic collector finds nothing among millions of small structs, and looks at them over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _why_empty(stream: KinetoStream, ranks: Ranks) -> str:
    if not stream.has_events:
        where = "is damaged before its events begin" if stream.losses.damage else "has no traceEvents"
        return f"looks like a torch.profiler trace but {where}; record it again"
    unknown = [category or "none" for tables in ranks.values() for category, _ in tables.unknown.most_common(3)]
    if unknown:
        found = ", ".join(unknown)
        return f"is a Chrome trace, but not from torch.profiler (its events have the categories: {found})"
    if stream.losses.corrupt_bytes or stream.losses.damage or stream.losses.cut_off:
        return "is damaged: no event in it can be read; record it again"
    return "has traceEvents, but no operator, call or kernel of torch.profiler is among them"


def _loss_warnings(path: Path, losses: Losses) -> list[str]:
    warnings = []
    if losses.damage:
        warnings.append(f"{path}: {losses.damage}; what could be read until there was used")
    elif losses.cut_off:
        warnings.append(f"{path}: the file ends in the middle; the end of the recording is missing")
    if losses.corrupt_places:
        places = "1 place" if losses.corrupt_places == 1 else f"{losses.corrupt_places} places"
        lost = format_bytes(losses.corrupt_bytes)
        warnings.append(f"{path}: {lost} in {places} are no valid JSON; the events there are lost")
    if losses.strange_entries:
        warnings.append(f"{path}: {losses.strange_entries} entries of traceEvents are no events and were left out")
    return warnings


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    if any(mark in head for mark in _NOT_KINETO):
        return False
    if _OBJECT.match(head):
        return any(mark in head for mark in _MARKS)
    return _ARRAY.match(head) is not None


READER = Reader("torch.profiler", _sniffs, read)
