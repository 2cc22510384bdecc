"""Decodes JSON documents that must be read whole, and of one that was cut off what it still holds."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from diagnose.errors import InputError

T = TypeVar("T")

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding where JSON is broken, not of the expected shape, not UTF-8, or nested without end."""
_TRIES = 16
"""How many closing braces from the end are tried: more than a record has."""


def decode_whole(data: bytes, kind: type[T], closing: bytes, refusal: InputError) -> tuple[T, bool]:
    """The document and whether it was cut off; `closing` is what ends it after the last record of its last table.

    Raises `refusal` where it cannot be read in either way.
    """
    try:
        return msgspec.json.decode(data, type=kind), False
    except UNDECODABLE as error:
        end = len(data)
        for _ in range(_TRIES):
            end = data.rfind(b"}", 0, end)
            if end < 0:
                break
            try:
                return msgspec.json.decode(data[: end + 1] + closing, type=kind), True
            except UNDECODABLE:
                continue
        raise refusal from error
