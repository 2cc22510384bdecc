"""How the pieces that are held at a moment lie in the segments that the allocator has of the device.

A segment of which a piece is held cannot be given back: what is free in it is a fragment. What is free in segments of
which nothing is held is a cache. Segments that grow are given back in part: what is free in them is a cache as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.memory.allocations import MOST_BYTES, Pieces
from diagnose.measure.memory.history import of_device
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64, MemoryAction

_WHOLE = (MemoryAction.SEGMENT_ALLOC, MemoryAction.SEGMENT_FREE)
_LAST = int(np.iinfo(np.int64).max) - MOST_BYTES
_PARTS = (MemoryAction.SEGMENT_MAP, MemoryAction.SEGMENT_UNMAP)


@dataclass(frozen=True)
class Layout:
    """The allocator's segments and blocks at a moment."""

    reserved_bytes: int
    fragments_bytes: int
    """Free, in segments of which a part is held. Sizes are what was asked for: what rounding up adds counts as free."""


def layout_at(trace: Trace, device: int, held: Pieces, place: int) -> Layout | None:
    """The layout right after the event at a place of the history; None where the segments are not recorded."""
    table = trace.segments
    real = (table.size_bytes > 0) & (table.size_bytes <= MOST_BYTES) & (table.address <= _LAST)
    mine = table.where(of_device(trace, table.device, device) & real)
    if not len(mine):
        return None
    fixed = mine.where(mine.expandable == 0)
    growing = mine.where(mine.expandable != 0)
    whole = dict(zip(fixed.address.tolist(), fixed.size_bytes.tolist(), strict=True))
    parts = Intervals.of(growing.address, growing.address + growing.size_bytes)
    later = held.rows[place + 1 :]
    action = trace.memory.action[later]
    for row in later[np.isin(action, _WHOLE + _PARTS)][::-1].tolist():
        parts = _undo(trace, row, whole, parts)
    starts = np.asarray(sorted(whole), np.int64)
    sizes = np.asarray([whole[start] for start in starts.tolist()], np.int64)
    used = _used(held, place, starts, sizes)
    return Layout(
        reserved_bytes=int(sizes.sum()) + parts.total_ns,
        fragments_bytes=int((sizes - used)[used > 0].clip(min=0).sum()),
    )


def _undo(trace: Trace, row: int, whole: dict[int, int], parts: Intervals) -> Intervals:
    """Bring the segments back to what they were before an event: `whole` in place, `parts` are returned."""
    memory = trace.memory
    action, address, size = int(memory.action[row]), int(memory.address[row]), int(memory.size_bytes[row])
    if not 0 < size <= MOST_BYTES or address > _LAST:
        return parts
    if action == MemoryAction.SEGMENT_ALLOC:
        whole.pop(address, None)
        return parts
    if action == MemoryAction.SEGMENT_FREE:
        whole[address] = size
        return parts
    part = Intervals.of(np.asarray([address]), np.asarray([address + size]))
    return parts - part if action == MemoryAction.SEGMENT_MAP else parts | part


def _used(held: Pieces, place: int, starts: Int64, sizes: Int64) -> Int64:
    """Bytes held of each segment."""
    used = np.zeros(len(starts), np.int64)
    there = held.held_at(place)
    address, size = held.address[there], held.size_bytes[there]
    if len(starts):
        of = np.searchsorted(starts, address, side="right") - 1
        inside = (of >= 0) & (address < starts[of] + sizes[of])
        np.add.at(used, of[inside], size[inside])
    return used
