"""Decimal microseconds as Kineto writes them, turned into integer nanoseconds without losing one.

Three ways of writing times are out there: whole microseconds since the epoch (until 2024), microseconds since the
epoch with three decimals (spring 2024), and microseconds relative to `baseTimeNanoseconds` with three decimals. Some
tools write any of them as text. A double holds the first and the third exactly, but the second only to 0.25 µs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from diagnose.trace.schema import Int64

UNREADABLE = np.iinfo(np.int64).min
"""Stands for a time that is missing or no number."""

EXACT_BELOW_US = 2**43
"""The timestamp (101 days) below which a double's grid is finer than half a nanosecond, so that three decimals
survive."""
_PRODUCT_EXACT_BELOW_US = 2**40
"""The timestamp below which a double is within 0.061 ns of its decimal, its product with 1000 within 0.063 more:
rounding is exact."""
MOST_US = 2**52
"""Year 2112; a later time is taken for garbage, and sums of two times cannot overflow."""

_NUMBER = re.compile(r"\s*([+-]?)(\d{1,18})(?:\.(\d*))?(?:[eE]([+-]?\d{1,2}))?\s*")
_THREE_DECIMALS = re.compile(rb"(?:-?[0-9]{1,15}\.[0-9]{3},)+")


class Inexact(Exception):
    """Doubles were given where only the digits are exact: decode again with the digits kept."""


def nanoseconds(values: Sequence[Any]) -> Int64:
    """Microseconds (int, float, text, JSON digits as `msgspec.Raw`) as integer nanoseconds, `UNREADABLE` where none.

    Raises Inexact where a double has lost digits.
    """
    if not values:
        return np.empty(0, np.int64)
    if type(values[0]) is msgspec.Raw:
        return _of_digits(values)
    if type(values[0]) is float:
        try:
            us = np.fromiter(values, np.float64, len(values))
        except (ValueError, OverflowError):
            return _one_by_one(values)
        return _one_by_one(values) if np.isnan(us).any() else _of_doubles(us)  # numpy takes None for a NaN
    array = np.asarray(values)
    if array.dtype.kind == "i":
        readable = np.abs(array) < MOST_US
        times: Int64 = np.where(readable, np.where(readable, array, 0) * 1000, UNREADABLE).astype(np.int64)
        return times
    return _of_doubles(array) if array.dtype.kind == "f" else _one_by_one(values)


def nanoseconds_of(value: object) -> int:
    """One time, by its decimal text; `UNREADABLE` when it is no number or beyond `MOST_US`."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        if isinstance(value, float) and abs(value) >= EXACT_BELOW_US:
            raise Inexact
        value = repr(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return UNREADABLE
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
    # Nanoseconds are the digits with the point three (and the exponent) places further right, rounded half up.
    point = len(whole) + 3 + exponent
    digits = (whole + fraction).ljust(point + 1, "0")
    if point < 0:
        return 0
    result = int(digits[:point] or "0") + (digits[point] >= "5")
    if result >= MOST_US * 1000:
        return UNREADABLE
    return -result if sign == "-" else result


def _one_by_one(values: Sequence[Any]) -> Int64:
    return np.fromiter((nanoseconds_of(value) for value in values), np.int64, len(values))


def _of_doubles(us: Any) -> Int64:
    most = np.abs(us).max()
    if most >= EXACT_BELOW_US:
        raise Inexact
    times: Int64
    if most < _PRODUCT_EXACT_BELOW_US:
        times = np.rint(us * 1000).astype(np.int64)
        return times
    whole = np.floor(us)
    # The fraction is exact, so rounding it alone gives the digits; rounding us * 1000 would not.
    times = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return times


def _of_digits(values: Sequence[Any]) -> Int64:
    joined = b",".join(values)
    if _THREE_DECIMALS.fullmatch(joined + b","):
        # With three decimals everywhere, leaving the points out multiplies by 1000.
        return np.fromiter(map(int, joined.replace(b".", b"").split(b",")), np.int64, len(values))
    texts = (bytes(value).decode("utf-8", "replace").strip('"') for value in values)
    return np.fromiter((nanoseconds_of(text) for text in texts), np.int64, len(values))
