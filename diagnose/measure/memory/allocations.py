"""Every piece of memory that an allocator's history tells of: when it was taken, when it was given back, by whom.

    held = pieces(trace, device)
    held.taken[i], held.freed[i]    # places in the history: -1 is before it, `held.events` is not within it
    held.total()                    # bytes held after each event

A history is a ring: it begins somewhere. What was there before shows when it is given back, or in the blocks of the
snapshot that ends it. Sizes are what was asked for where the recording knows that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.memory.history import freed, of_device
from diagnose.measure.memory.usage import ALLOCATED, counted
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Blocks, BlockState, Bool, Int64, MemoryAction, UInt8

MOST_BYTES = 1 << 42
"""No piece or segment is larger on any device; sums of a million of them are held by 64 bits."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of one device's memory. Places count the events of its history, from 0."""

    rows: Int64
    """The history: rows of `trace.memory`."""
    address: Int64
    size_bytes: Int64
    taken: Int64
    """The place of the event that took it; -1 where it was there before."""
    freed: Int64
    """The place of the event that gave it back; `events` where it is still held."""
    stack: Int64
    """The stack that asked: an index into `trace.stacks`, or -1."""
    category: UInt8
    """A `MemoryCategory` where the recording tells."""

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def events(self) -> int:
        """How many events the history has."""
        return len(self.rows)

    def held_at(self, place: int) -> Bool:
        """Return which pieces are held right after the event at a place; of -1, before the first event."""
        return np.asarray((self.taken <= place) & (self.freed > place), np.bool_)

    def total(self) -> Int64:
        """Bytes held before the first event, and after each."""
        return summed(self.taken, self.freed, self.size_bytes, self.events)


def summed(taken: Int64, freed: Int64, size_bytes: Int64, events: int) -> Int64:
    """Bytes held before the first event and after each, of some pieces."""
    changes = np.zeros(events + 2, np.int64)
    np.add.at(changes, taken + 1, size_bytes)
    np.subtract.at(changes, freed + 1, size_bytes)
    return np.cumsum(changes)[:-1]


def pieces(trace: Trace, device: int) -> Pieces:
    """The pieces of a device; none where events have no addresses."""
    memory = trace.memory
    rows = np.flatnonzero(of_device(trace, memory.device, device))
    takes = memory.action[rows] == MemoryAction.ALLOC
    gives = freed(trace)[rows]
    places = np.flatnonzero((takes | gives) & (memory.address[rows] != MISSING))
    order = places[np.lexsort((places, memory.address[rows[places]]))]
    address, taking = memory.address[rows[order]], takes[order]
    same = address[1:] == address[:-1]
    # A piece ends with the next event at its address, whatever that is: a ring may have lost its return.
    ends = np.full(len(order), len(rows), np.int64)
    ends[:-1][same] = order[1:][same]
    earlier = ~taking & ~np.concatenate(([False], same & taking[:-1]))[: len(order)]
    began, left = order[taking], order[earlier]
    blocks = trace.blocks
    mine = blocks.where(of_device(trace, blocks.device, device) & (blocks.state == BlockState.HELD))
    alive = ends[taking] == len(rows)
    known, beside = _matched(mine, memory.address[rows[began]], alive)
    if not len(blocks):
        # One block for the memory that was held before the recording and to its end: the allocator's totals without
        # the events.
        seen_bytes = int(memory.size_bytes[rows[began[alive]]].sum())
        own = counted(trace, ALLOCATED, device)
        timed = len(rows) and len(own) and trace.memory.time_ns[rows[-1]] != MISSING
        size = int(own.at(trace.memory.time_ns[rows[-1:]])[0]) - seen_bytes if timed else 0
        beside = Blocks.build({"address": [MISSING], "requested_bytes": [size]} if size > 0 else {})
    nowhere = np.full(len(left), MISSING, np.int64)
    sizes = (memory.size_bytes[rows[began]], memory.size_bytes[rows[left]], beside.requested_bytes)
    recorded = memory.category[rows[began]]
    categories = (
        np.where(known >= 0, mine.category[known], recorded) if len(mine) else recorded,
        memory.category[rows[left]],
        beside.category,
    )
    return Pieces(
        rows=rows,
        address=np.concatenate((memory.address[rows[began]], memory.address[rows[left]], beside.address)),
        size_bytes=np.concatenate(sizes).clip(0, MOST_BYTES),
        taken=np.concatenate((began, nowhere, np.full(len(beside), MISSING, np.int64))),
        freed=np.concatenate((ends[taking], left, np.full(len(beside), len(rows), np.int64))),
        stack=np.concatenate((memory.stack[rows[began]], nowhere, beside.stack)).astype(np.int64),
        category=np.concatenate(categories).astype(np.uint8),
    )


def _matched(held: Blocks, address: Int64, alive: Bool) -> tuple[Int64, Blocks]:
    """Per piece its block, or -1; and the blocks of which the history does not know."""
    known = np.full(len(address), MISSING, np.int64)
    if not len(held):
        return known, held
    order = np.argsort(held.address, kind="stable")
    at = np.minimum(np.searchsorted(held.address[order], address), len(order) - 1)
    found = alive & (held.address[order[at]] == address)
    known[found] = order[at[found]]
    rest = np.ones(len(held), np.bool_)
    rest[known[found]] = False
    return known, held.where(rest)
