"""The bytes allocated and reserved after each event of an allocator's history.

A history is a ring: it begins somewhere, and memory that was there before is never seen to be taken. Where a snapshot
says what was held at its end, totals are counted backward from there; else they count from the least that makes sense.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int32, Int64, MemoryAction

_TAKEN = (MemoryAction.SEGMENT_ALLOC, MemoryAction.SEGMENT_MAP)
_RETURNED = (MemoryAction.SEGMENT_FREE, MemoryAction.SEGMENT_UNMAP)


@dataclass(frozen=True, eq=False)
class History:
    """One device's events in their order, with the totals after each."""

    rows: Int64
    """Rows of `trace.memory`."""
    time_ns: Int64
    """Times of the events; where the recording has none, their numbers."""
    allocated_bytes: Int64
    reserved_bytes: Int64
    """All zero where no segments are recorded."""


def history(trace: Trace, device: int) -> History:
    """The totals of a device over the recorded history."""
    memory = trace.memory
    rows = np.flatnonzero(of_device(trace, memory.device, device))
    action, size = memory.action[rows], memory.size_bytes[rows]
    frees = freed(trace)[rows]
    allocated = np.where(action == MemoryAction.ALLOC, size, 0) - np.where(frees, size, 0)
    reserved = np.where(np.isin(action, _TAKEN), size, 0) - np.where(np.isin(action, _RETURNED), size, 0)
    mine = of_device(trace, trace.segments.device, device)
    time_ns = memory.time_ns[rows]
    timed = bool(len(rows)) and bool((time_ns != MISSING).all())
    return History(
        rows=rows,
        time_ns=time_ns if timed else np.arange(len(rows), dtype=np.int64),
        allocated_bytes=_totals(allocated, trace.segments.allocated_bytes[mine]),
        reserved_bytes=_totals(reserved, trace.segments.size_bytes[mine]),
    )


def of_device(trace: Trace, devices: Int32, device: int) -> Bool:
    """Return which entries of a table of the trace are of a device: all of them where none says of which it is and no
    work of a device was recorded beside them; else -1 is the host."""
    told = trace.has_device or (devices != MISSING).any()
    return devices == device if told else np.ones(len(devices), np.bool_)


def freed(trace: Trace) -> Bool:
    """Return which events end the use of a piece: that the program gave it back where that is recorded, else its
    return."""
    requested = trace.memory.action == MemoryAction.FREE_REQUESTED
    return requested if requested.any() else np.asarray(trace.memory.action == MemoryAction.FREE, np.bool_)


def alive(trace: Trace, rows: Int64) -> Int64:
    """The allocations that nothing gave back, among the rows of one device's history, in order."""
    memory = trace.memory
    taken = memory.action[rows] == MemoryAction.ALLOC
    ended = freed(trace)[rows]
    events = np.flatnonzero((taken | ended) & (memory.address[rows] != MISSING))
    # Of each address the last event tells: an allocation that comes last is still there.
    order = events[np.argsort(memory.address[rows[events]], kind="stable")]
    address = memory.address[rows[order]]
    last = np.append(address[1:] != address[:-1], True)[: len(order)]
    return np.sort(rows[order[last & taken[order]]])


def _totals(changes: Int64, held: Int64) -> Int64:
    after = np.cumsum(changes)
    if len(held):
        return after - (after[-1] if len(after) else 0) + int(np.maximum(held, 0).sum())
    return after - min(0, int(after.min(initial=0)))
