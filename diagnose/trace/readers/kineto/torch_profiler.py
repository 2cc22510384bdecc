"""Reads what torch.profiler exports: Kineto's Chrome JSON, plain or gzip, of every year since 2020.

    {"schemaVersion": 1, "deviceProperties": […], "distributedInfo": {…}, "baseTimeNanoseconds": …, "traceEvents": […]}

or the bare array of events. A file into which several ranks were merged gives one trace for each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.kineto.chunks import CHUNK_BYTES
from diagnose.trace.readers.kineto.document import Losses
from diagnose.trace.readers.kineto.document_parts import read_in_parts
from diagnose.trace.readers.kineto.rank_trace import Header, trace_of
from diagnose.trace.readers.kineto.whole_document import Whole, read_whole
from diagnose.trace.readers.reader import Reader
from diagnose.units import format_bytes

_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"baseTimeNanoseconds"', b'"distributedInfo"')
_ARRAY = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\[\s*(?:(?:\{\s*\}|null)\s*,\s*)*(?:\]|\{.{0,2000}?"(?:ph|ts)"\s*:)', re.DOTALL
)
_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{")
_NOT_KINETO = (b'"rocprofiler-sdk-tool"',)


def read(path: Path, chunk_bytes: int = CHUNK_BYTES) -> list[Trace]:
    """The traces of a file, one a rank. Raises NotATrace when nothing of torch.profiler is in it."""
    whole = read_in_parts(path, chunk_bytes) or read_whole(path, chunk_bytes)
    header = Header.of(whole.header)
    traces = [trace_of(path, tables, header, rank) for rank, tables in whole.ranks.items()]
    traces = [trace for trace in traces if trace.window_ns is not None]
    if not traces:
        raise NotATrace(path, _why_empty(whole))
    warnings = _loss_warnings(path, whole.losses)
    return [replace(traces[0], warnings=(*warnings, *traces[0].warnings)), *traces[1:]]


def _why_empty(whole: Whole) -> str:
    if not whole.has_events:
        where = "is damaged before its events begin" if whole.losses.damage else "has no traceEvents"
        return f"looks like a torch.profiler trace but {where}; record it again"
    unknown = [category or "none" for tables in whole.ranks.values() for category, _ in tables.unknown.most_common(3)]
    if unknown:
        found = ", ".join(unknown)
        return f"is a Chrome trace, but not from torch.profiler (its events have the categories: {found})"
    if whole.losses.corrupt_bytes or whole.losses.damage or whole.losses.cut_off:
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
