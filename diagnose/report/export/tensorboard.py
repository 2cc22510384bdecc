"""A recording as an event file of TensorBoard: what its removed profiler plugin showed, in the plugins that are there.

    scalars   step/…         time of each step by class, in milliseconds
              counter/…      counters over the run; the step axis counts milliseconds
    text      report         the report; kernels and operators as tables

One run a rank. The file is written by hand, records of protobuf messages, so that TensorBoard need not be installed:
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache

from diagnose.measure import Measures
from diagnose.measure.profile.counter_series import counter_series
from diagnose.measure.profile.step_profile import profile_of
from diagnose.model import Accounting, Diagnosis
from diagnose.report.export import markdown
from diagnose.report.export.markdown_text import inline
from diagnose.report.sections.profile_tables import ProfileTable, kernel_table, operator_table
from diagnose.report.style.vocabulary import class_look
from diagnose.trace import Trace
from diagnose.units import NS_PER_MS, NS_PER_S

FILE = "events.out.tfevents.0.diagnose"
_VERSION = "brain.Event:2"
_STRING = 7
"""`DT_STRING` of TensorFlow."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ROWS = 50
"""The most rows of a table."""


def render(traces: Sequence[Trace], diagnosis: Diagnosis) -> dict[str, bytes]:
    """The event file of each run, by its name below the folder."""
    found = {}
    for number, trace in enumerate(traces):
        rank = trace.rank if trace.rank is not None else number
        run = f"rank{rank}" if len(traces) > 1 else "."
        found[run] = b"".join(map(_record, _events(trace, diagnosis)))
    return found


def _events(trace: Trace, diagnosis: Diagnosis) -> Iterator[bytes]:
    measures = Measures(trace)
    begin_s = int(measures.steps.start_ns[0]) / NS_PER_S if len(measures.steps) else 0.0
    yield _fixed64(1, begin_s) + _bytes(3, _VERSION.encode())
    for number, accounting in enumerate(measures.accountings, 1):
        parts = (_scalar(f"step/{name}", ns / NS_PER_MS) for name, ns in _classes(accounting))
        yield _event(begin_s, number, *parts)
    read_s = int(trace.counters.time_ns.min()) / NS_PER_S if len(trace.counters) else begin_s
    for series in counter_series(trace):
        device = f" of device {series.device}" if series.device >= 0 else ""
        for time_ns, value in zip(series.time_ns, series.value, strict=True):
            at_s = read_s + time_ns / NS_PER_S
            yield _event(at_s, time_ns // NS_PER_MS, _scalar(f"counter/{series.name}{device}", value))
    profile = profile_of(measures)
    texts = {"report": markdown.render(diagnosis), "kernels": _table(kernel_table(profile))}
    texts["operators"] = _table(operator_table(profile))
    yield _event(begin_s, 0, *(_text(tag, text) for tag, text in texts.items() if text))


def _classes(accounting: Accounting) -> Iterator[tuple[str, int]]:
    yield "whole", accounting.total_ns
    yield class_look("compute").label, accounting.compute
    yield class_look("exposed_comm").label, accounting.exposed_comm
    yield class_look("exposed_copy").label, accounting.exposed_copy
    for cause, ns in accounting.idle.items():
        yield class_look(cause).label, ns


def _table(table: ProfileTable) -> str:
    """Return the table in Markdown, which TensorBoard renders."""
    if not table.rows:
        return ""
    lines = [" | ".join(column.title for column in table.columns), " | ".join("---" for _ in table.columns)]
    lines += [" | ".join(inline(cell.words).replace("|", "\\|") for cell in row.cells) for row in table.rows[:_ROWS]]
    return "\n".join(f"| {line} |" for line in lines)


# -- messages: Event {wall_time = 1, step = 2, file_version = 3, summary = 5}, Summary {value = 1},
# -- Value {tag = 1, simple_value = 2, tensor = 8, metadata = 9} ------------------------------------------------------


def _event(time_s: float, step: int, *values: bytes) -> bytes:
    return _fixed64(1, time_s) + _varint(2, step) + _bytes(5, b"".join(_bytes(1, value) for value in values))


def _scalar(tag: str, value: float) -> bytes:
    return _bytes(1, tag.encode()) + _key(2, _FIXED32) + struct.pack("<f", value)


def _text(tag: str, text: str) -> bytes:
    """A tensor of one string, for the text plugin."""
    shape = _bytes(2, _varint(1, 1))
    tensor = _varint(1, _STRING) + _bytes(2, shape) + _bytes(8, text.encode())
    return _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, _bytes(1, _bytes(1, b"text")))


def _key(field: int, kind: int) -> bytes:
    return _number(field << 3 | kind)


def _varint(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _number(value)


def _fixed64(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _number(len(value)) + value


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


# -- records: length, its checksum, the message, its checksum ---------------------------------------------------------


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _checksum(length) + message + _checksum(message)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TensorFlow's records have it."""
    table, value = _castagnoli(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _castagnoli() -> tuple[int, ...]:
    table = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)
