"""Reads the memory timelines that torch.profiler exports as JSON, in both their forms.

    [[1696966047096061874, 2, 512, 7], …]                  every event: time, action, bytes, category (`.raw.json.gz`)
    [[1696966047096061, …], [[0, 512, 0, …], …]]           bytes by category over time (`.json`)

The first gives `memory` events, the second counters `memory.parameter_bytes`, ….
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.reader import Reader, rank_in_name
from diagnose.trace.schema import MISSING, Counters, Int64, MemoryAction, MemoryCategory, MemoryEvents
from diagnose.units import NS_PER_US

_MOST_BYTES = 512 << 20
_REMEDY = "record fewer steps, or read it with `diagnose analyze --any-size`"
_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\[\s*-?\d{1,19}\s*,\s*[1-4]\s*,\s*-?\d{1,19}\s*,\s*[0-7]\s*\]")
_TIMES = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\[\s*-?\d{1,19}\s*(?:,\s*-?\d{1,19}\s*)*(?:\]\s*,\s*\[|\Z|,|\d)")
_ACTIONS = np.array(
    [
        MemoryAction.UNKNOWN,
        MemoryAction.PREEXISTING,
        MemoryAction.ALLOC,
        MemoryAction.RECATEGORIZED,
        MemoryAction.FREE,
    ],
    np.uint8,
)
# The profiler numbers the categories in this order, and what it could not tell comes last.
_CATEGORIES = (
    MemoryCategory.PARAMETER,
    MemoryCategory.OPTIMIZER_STATE,
    MemoryCategory.INPUT,
    MemoryCategory.TEMPORARY,
    MemoryCategory.ACTIVATION,
    MemoryCategory.GRADIENT,
    MemoryCategory.AUTOGRAD_DETAIL,
    MemoryCategory.UNKNOWN,
)
_EPOCH_NS_FROM = 10**17
"""The time from which on times are nanoseconds since the epoch; below, they are microseconds: PyTorch changed the
unit of the second form."""


def read(path: Path) -> list[Trace]:
    """The one trace of a timeline. Raises InputError where the JSON is damaged or no such timeline."""
    data = read_whole(path, at_most(_MOST_BYTES), _REMEDY).removeprefix(b"\xef\xbb\xbf")
    try:
        if _EVENT.match(data):
            rows = msgspec.json.decode(data, type=list[tuple[int, int, int, int]])
            return [_from_events(path, np.asarray(rows, np.int64))]
        times, sizes = msgspec.json.decode(data, type=tuple[list[int], list[list[int]]])
        return [_from_sizes(path, np.asarray(times, np.int64), np.asarray(sizes, np.int64))]
    except msgspec.DecodeError as error:
        raise InputError(path, f"looks like a memory timeline, but is damaged ({error}); export it again") from error
    except (OverflowError, ValueError) as error:
        raise NotATrace(path, "looks like a memory timeline, but its numbers are none of memory") from error


def _from_events(path: Path, rows: Int64) -> Trace:
    time_ns, action, size, category = rows.T
    if ((action < 1) | (action > 4) | (category < 0) | (category >= len(_CATEGORIES))).any():
        raise ValueError("an action or a category is out of range")
    kinds = _ACTIONS[action]
    events = MemoryEvents.build(
        {
            "time_ns": np.where(time_ns < 0, MISSING, time_ns),
            "action": kinds,
            "size_bytes": np.where(kinds == MemoryAction.RECATEGORIZED, size, np.abs(size)),
            "category": np.asarray(_CATEGORIES, np.uint8)[category],
        }
    ).sorted_by_start()
    return Trace(source=str(path), rank=rank_in_name(path), window_ns=_window(time_ns), memory=events)


def _from_sizes(path: Path, times: Int64, sizes: Int64) -> Trace:
    if sizes.ndim != 2 or sizes.shape != (len(times), len(_CATEGORIES) + 1):
        raise ValueError("there are not as many sizes as times and categories")
    scale = 1 if len(times) and np.abs(times).max() >= _EPOCH_NS_FROM else NS_PER_US
    time_ns = np.where(times < 0, MISSING, times * scale)
    known = len(_CATEGORIES)
    names = tuple(f"memory.{category.name.lower()}_bytes" for category in _CATEGORIES)
    counters = Counters.build(
        {
            "time_ns": np.repeat(time_ns, known),
            "name": np.tile(np.arange(known), len(times)),
            "value": sizes[:, 1:].ravel(),  # the first column is a zero, for drawing
        }
    )
    return Trace(
        source=str(path),
        names=names,
        rank=rank_in_name(path),
        window_ns=_window(time_ns),
        counters=counters.sorted_by_start(),
    )


def _window(time_ns: Int64) -> tuple[int, int] | None:
    timed = time_ns[time_ns >= 0]
    return (int(timed.min()), int(timed.max())) if len(timed) else None


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    return _EVENT.match(head) is not None or _TIMES.match(head) is not None


READER = Reader("memory timeline", _sniffs, read)
