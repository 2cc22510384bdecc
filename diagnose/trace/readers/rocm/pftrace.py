"""Reads .pftrace files of rocprofv3: Perfetto's protobuf, of which the track events are decoded.

Every slice of rocprofv3 carries its exact times, its correlation id and its agent as annotations, so tracks need no
stack. Names come interned, per writer's sequence. Overlapping kernels on one stream were cut in the middle of their
overlap by rocprofv3 itself, for Perfetto cannot draw them. The command line is in the file and stays there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.trace import Trace
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.io.protobuf_wire import Malformed, Span, fields, text
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.meaning import direction_of
from diagnose.trace.readers.rocm.recording import Recording
from diagnose.trace.schema import MISSING, CopyDirection

LARGEST_BYTES = 1 << 30
_BATCH = 20_000
_ONLY = 0
"""A file holds one process."""
_REMEDY = (
    "record the run with --output-format rocpd, which is read in pieces, or read it with `diagnose analyze --any-size`"
)

# Field numbers of Perfetto's messages.
_PACKET = 1
_SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _DESCRIPTOR = 10, 11, 12, 13, 60
_STATE_CLEARED = 1
_TYPE, _CATEGORY_ID, _CATEGORY, _NAME_ID, _NAME, _ANNOTATION = 9, 3, 22, 10, 23, 4
_SLICE_BEGIN, _INSTANT = 1, 3
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS = 1, 2, 3, 29
_ID_OF_NAME, _OWN_NAME, _TEXT, _ID_OF_TEXT = 1, 10, 6, 17
_NUMBERS = (2, 3, 4, 7)

_TRAILING_DIGITS = re.compile(r"(\d{1,9})\D*$")

Value = int | str


@dataclass
class _Interned:
    """Names by number, as one sequence of packets has introduced them."""

    texts: dict[int, dict[int, str]] = field(default_factory=dict)

    def learn(self, data: bytes, span: Span) -> None:
        for kind, entry in fields(data, *span):
            if kind in (_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS) and isinstance(entry, tuple):
                number, name = 0, ""
                for part, value in fields(data, *entry):
                    if part == 1 and isinstance(value, int):
                        number = value
                    elif part == 2:
                        name = text(data, value)
                self.texts.setdefault(kind, {})[number] = name

    def get(self, kind: int, number: int | Span) -> str:
        return self.texts.get(kind, {}).get(number, "") if isinstance(number, int) else ""


@dataclass
class _Slice:
    """A slice that one track event began."""

    category: str = ""
    name: str = ""
    annotations: dict[str, Value] = field(default_factory=dict)

    def number(self, *names: str) -> int:
        """The first of these annotations that is there, as a number."""
        for name in names:
            value = self.annotations.get(name)
            if isinstance(value, int):
                return value if value < 1 << 63 else value - (1 << 64)
            match = _TRAILING_DIGITS.search(value) if isinstance(value, str) else None
            if match:
                return int(match[1])
        return MISSING


@dataclass
class _Reading:
    """The state of decoding one file."""

    data: bytes
    recording: Recording
    slices: dict[str, list[_Slice]] = field(default_factory=dict)
    """The slices by category that have not been given to the recording yet."""
    sequences: dict[int, _Interned] = field(default_factory=dict)
    pid: int = MISSING
    packets: int = 0
    lost: int = 0


def read(path: Path) -> list[Trace]:
    """The trace of the process in the file."""
    recording = Recording(path)
    reading = _Reading(read_whole(path, at_most(LARGEST_BYTES), _REMEDY), recording)
    try:
        for number, span in fields(reading.data, 0, len(reading.data)):
            if number == _PACKET and isinstance(span, tuple):
                reading.packets += 1
                _take_packet(reading, span)
    except Malformed:
        recording.warnings.append("the file ends in the middle; the end of the recording is missing")
    for category, slices in reading.slices.items():
        _record(recording, category, slices)
    recording.process(_ONLY).pid = reading.pid
    if reading.lost:
        recording.warnings.append(f"{reading.lost} packets make no sense and were left out")
    return recording.traces(_why_empty(reading))


def _take_packet(reading: _Reading, span: Span) -> None:
    try:
        parts = dict(fields(reading.data, *span))
        sequence, flags = parts.get(_SEQUENCE, 0), parts.get(_FLAGS, 0)
        if not isinstance(sequence, int):
            return
        if isinstance(flags, int) and flags & _STATE_CLEARED:
            reading.sequences[sequence] = _Interned()
        interned = reading.sequences.setdefault(sequence, _Interned())
        learned, event, described = parts.get(_INTERNED), parts.get(_TRACK_EVENT), parts.get(_DESCRIPTOR)
        if isinstance(learned, tuple):
            interned.learn(reading.data, learned)
        if isinstance(described, tuple) and reading.pid == MISSING:
            reading.pid = _pid(reading.data, described)
        if isinstance(event, tuple):
            one = _slice(reading.data, event, interned)
            if one is not None:
                waiting = reading.slices.setdefault(one.category, [])
                waiting.append(one)
                if len(waiting) >= _BATCH:
                    _record(reading.recording, one.category, waiting)
                    waiting.clear()
    except Malformed:
        reading.lost += 1


def _pid(data: bytes, span: Span) -> int:
    """The process id of a process's or a thread's track; its command line and name are passed over."""
    for number, value in fields(data, *span):
        if number in (3, 4) and isinstance(value, tuple):
            for part, pid in fields(data, *value):
                if part == 1 and isinstance(pid, int) and 0 < pid < 1 << 31:
                    return pid
    return MISSING


def _slice(data: bytes, span: Span, interned: _Interned) -> _Slice | None:
    """The slice that an event begins; None for ends and counters."""
    one, kind = _Slice(), 0
    for number, value in fields(data, *span):
        if number == _TYPE:
            if value not in (_SLICE_BEGIN, _INSTANT):
                return None
            kind = _SLICE_BEGIN
        elif number == _CATEGORY_ID:
            one.category = interned.get(_CATEGORIES, value)
        elif number == _CATEGORY:
            one.category = text(data, value)
        elif number == _NAME_ID:
            one.name = interned.get(_NAMES, value)
        elif number == _NAME:
            one.name = text(data, value)
        elif number == _ANNOTATION and isinstance(value, tuple):
            _annotate(one, data, value, interned)
    return one if kind else None


def _annotate(one: _Slice, data: bytes, span: Span, interned: _Interned) -> None:
    name = ""
    value: Value | None = None
    for number, part in fields(data, *span):
        if number == _ID_OF_NAME:
            name = interned.get(_ANNOTATION_NAMES, part)
        elif number == _OWN_NAME:
            name = text(data, part)
        elif number in _NUMBERS and isinstance(part, int):
            value = part
        elif number == _TEXT:
            value = text(data, part)
        elif number == _ID_OF_TEXT:
            value = interned.get(_ANNOTATION_TEXTS, part)
    if name and value is not None:
        one.annotations[name.lower()] = value


def _record(recording: Recording, category: str, slices: Sequence[_Slice]) -> None:
    """Give the slices of one category to the recording, which keeps them in columns."""
    process = recording.process(_ONLY)
    begin, end = [one.number("begin_ns") for one in slices], [one.number("end_ns") for one in slices]
    names, call = [one.name for one in slices], [one.number("corr_id") for one in slices]
    stream = [one.number("stream_id") for one in slices]
    if category == "kernel_dispatch":
        agents = recording.numbered([one.number("agent") for one in slices])
        process.add_kernels(begin, end, names, agents, stream, [one.number("queue") for one in slices], call)
    elif category == "memory_copy":
        sides = ("dst_agent", "src_agent")
        order = [sides[::-1] if direction_of(name) is CopyDirection.DEVICE_TO_HOST else sides for name in names]
        agents = recording.numbered([one.number(*chosen) for one, chosen in zip(slices, order, strict=True)])
        size = [one.number("copy_bytes") for one in slices]
        process.add_copies(begin, end, names, agents, stream, call, size)
    elif category.endswith("_api"):
        process.add_host(category, begin, end, names, [one.number("tid") for one in slices], call)


def _why_empty(reading: _Reading) -> str:
    if reading.slices:
        printable = ("".join(filter(str.isprintable, category))[:40] for category in reading.slices)
        found = ", ".join(sorted(filter(None, printable))[:3])
        return f"is a Perfetto trace, but not of rocprofv3 (its events have the categories: {found or 'none'})"
    return (
        f"is a Perfetto trace without any event ({reading.packets} packets): the run recorded nothing; record it again "
        "with --kernel-trace --hip-trace"
    )


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    """Perfetto's packets all name the sequence that wrote them; no other protobuf that begins like one does."""
    if not head.startswith(b"\n"):
        return False
    packets = 0
    try:
        for number, span in fields(head, 0, len(head)):
            if number != _PACKET or not isinstance(span, tuple):
                return False
            if not isinstance(dict(fields(head, *span)).get(_SEQUENCE), int):
                return False
            packets += 1
    except Malformed:
        pass  # the head ends within a packet
    return packets > 0


READER = Reader("Perfetto", _sniffs, read)
