"""Reads the Chrome JSON of rocprof (1) and of rocmProfileData, whose first event is `{}`.

    {"traceEvents": [{}, {"ph": "X", "name": …, "pid": 8, "args": {"BeginNs": "…", "EndNs": "…", "gpu-id": "2", …}}, …]}
    [{}, {"pid": "2", "tid": "0", "name": …, "ts": "8306020565922", "dur": "26211", "args": {"desc": "Task"}}, …]

rocprof keeps the exact times in the arguments; `pid` is a row of the picture, which an event of its own names. The JSON
of rocmProfileData is cut to whole microseconds: its .rpd holds them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.io.truncated_json import decode_whole
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.recording import Recording
from diagnose.trace.schema import MISSING

LARGEST_BYTES = 2 << 30
_REMEDY = "give the results.db or results.csv of the same run"

_ROCPROF = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}\s*(?:,|\])')
_RPD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*\{\s*\}\s*,\s*\{\s*"name"\s*:\s*"process_name"')

Scalar = int | float | str | None


class _Args(Struct, gc=False, frozen=True):
    name: Scalar = None
    begin: Scalar = msgspec.field(default=None, name="BeginNs")
    end: Scalar = msgspec.field(default=None, name="EndNs")
    gpu: Scalar = msgspec.field(default=None, name="gpu-id")
    device: Scalar = msgspec.field(default=None, name="dev-id")
    queue: Scalar = msgspec.field(default=None, name="queue-id")
    stream: Scalar = msgspec.field(default=None, name="stream-id")
    pid: Scalar = None
    tid: Scalar = None
    index: Scalar = msgspec.field(default=None, name="Index")
    desc: Scalar = None


class _Event(Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: _Args = _Args()


class _Document(Struct, gc=False):
    """The document's events; its command line and machine are skipped."""

    events: list[_Event] = msgspec.field(default_factory=list, name="traceEvents")


def read(path: Path) -> list[Trace]:
    """One trace for each process in the document."""
    data = read_whole(path, at_most(LARGEST_BYTES), f"{_REMEDY}, or read it with `diagnose analyze --any-size`")
    refusal = InputError(path, f"is a recording of rocprof that is damaged; {_REMEDY}")
    bare = _RPD.match(data) is not None
    if bare:
        events, cut_off = decode_whole(data, list[_Event], b"]", refusal)
    else:
        document, cut_off = decode_whole(data, _Document, b"]}", refusal)
        events = document.events
    recording = Recording(path)
    if cut_off:
        recording.warnings.append("the file ends in the middle; the end of the recording is missing")
    rows = {_id(event.pid): str(event.args.name or "") for event in events if event.name == "process_name"}
    groups: dict[tuple[str, int], list[_Event]] = {}
    for event in events:
        if event.ph == "X" and (kind := _kind(event, rows.get(_id(event.pid), ""), bare)):
            groups.setdefault((kind, MISSING if bare else _id(event.args.pid)), []).append(event)
    if bare:
        recording.warnings.append(
            "its times are cut to whole microseconds; the .rpd that it was made from has them all"
        )
    for (kind, pid), chosen in groups.items():
        _take(recording, kind, pid, chosen, bare)
    return recording.traces("is a recording of rocprof in which no kernel and no call was recorded")


def _kind(event: _Event, row: str, bare: bool) -> str:
    """Return an event's kind: `kernel`, `copy` or a domain of calls; empty where it is not used."""
    if bare:
        what = str(event.args.desc or "")
        if row.startswith("GPU"):
            return "kernel" if what in ("KernelExecution", "Task") else "copy" if what else ""
        return "MARKER_API" if event.name == "UserMarker" else "HIP_API"
    if row.startswith("GPU"):
        return "" if "Barrier" in row else "kernel"
    if row.startswith("COPY"):
        return "copy"
    if "HSA" in row:
        return "HSA_API"
    return "HIP_API" if "HIP" in row else "MARKER_API" if row else ""


def _take(recording: Recording, kind: str, pid: int, events: Sequence[_Event], bare: bool) -> None:
    process = recording.process(pid, pid)
    args = [event.args for event in events]
    begin, end = _whole_microseconds(events) if bare else ([one.begin for one in args], [one.end for one in args])
    names = [event.name for event in events]
    if kind in ("kernel", "copy"):
        numbers = [event.pid for event in events] if bare else [_first(one.gpu, one.device) for one in args]
        devices = recording.numbered(numbers)
        queues = [event.tid if bare else one.queue for event, one in zip(events, args, strict=True)]
        streams = [one.stream for one in args]
        # A copy without a device was seen by HSA, whose calls are numbered apart from those of HIP.
        calls = [None if kind == "copy" and one.device is None else one.index for one in args]
        if kind == "kernel":
            process.add_kernels(begin, end, names, devices, streams, queues, calls)
        else:
            process.add_copies(begin, end, names, devices, streams, calls, [None] * len(events))
        return
    marked = bare and kind == "MARKER_API"
    process.add_host(
        kind,
        begin,
        end,
        [str(one.desc) for one in args] if marked else names,
        [event.tid if bare else one.tid for event, one in zip(events, args, strict=True)],
        [None if kind == "HSA_API" else one.index for one in args],
    )


def _whole_microseconds(events: Sequence[_Event]) -> tuple[list[int], list[int]]:
    starts, lengths = ids_of([event.ts for event in events]), ids_of([event.dur for event in events])
    known = (starts > 0) & (starts < 1 << 52) & (lengths < 1 << 52)
    pairs = zip(starts.tolist(), lengths.tolist(), known.tolist(), strict=True)
    times = [(start * 1000, (start + length) * 1000) if good else (MISSING, MISSING) for start, length, good in pairs]
    return [start for start, _ in times], [end for _, end in times]


def _first(one: Scalar, other: Scalar) -> Scalar:
    return other if one is None else one


def _id(value: Scalar) -> int:
    return int(ids_of([value])[0])


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    if _ROCPROF.match(head):
        return b'"gpu-id"' in head or b'"sort_index"' in head
    return _RPD.match(head) is not None and b'"process_sort_index"' in head and b'"desc"' in head


READER = Reader("rocprof JSON", _sniffs, read)
