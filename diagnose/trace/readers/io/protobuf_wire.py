"""Protocol buffers without their schema: the numbered fields of a message, as far as the bytes make sense."""

from __future__ import annotations

from collections.abc import Iterator

Span = tuple[int, int]
"""The offsets at which the bytes of a text, or of a message within a message, begin and end."""


class Malformed(Exception):
    """The bytes are no message, or end within a field."""


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int | Span]]:
    """Number and value of the fields in `data[start:end]`: integers as unsigned, the rest as spans of `data`.

    Raises Malformed at the field that makes no sense.
    """
    at = start
    while at < end:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = _varint(data, at - 1, end)
        kind = key & 7
        if kind == 0:
            value = data[at] if at < end else -1
            at += 1
            if value >= 0x80 or value < 0:
                value, at = _varint(data, at - 1, end)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at, end)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise Malformed(f"wire type {kind}")
        stop = at + length
        if stop > end:
            raise Malformed("the bytes end within a field")
        yield key >> 3, (at, stop) if kind == 2 else int.from_bytes(data[at:stop], "little")
        at = stop


def text(data: bytes, span: int | Span) -> str:
    """The text in a span; empty where the field is no text."""
    return data[span[0] : span[1]].decode("utf-8", "replace") if isinstance(span, tuple) else ""


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Malformed("the bytes end within a number")
