"""Which range lies in which: parents, depths and self times of ranges on threads, without a loop over rows.

    tree = nested(ops.start_ns, ops.end_ns, ops.thread)
    tree.parent, tree.depth, tree.self_ns
    tree.innermost(thread, time_ns)     # the row that was running there and then

Ranges on one thread lie inside each other or apart, but not always: profilers write some that outlive the range they
began in. Only the threads with such ranges are walked row by row, and what outlives its parent is cut at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diagnose.trace.schema import MISSING, Int32, Int64


@dataclass(frozen=True, eq=False)
class Nesting:
    """A forest of ranges. Rows are those of the table that it was made from."""

    start_ns: Int64
    end_ns: Int64
    """Cut at the parent's end where a range outlived it."""
    parent: Int64
    """The row that directly contains this one on its thread, or -1."""
    depth: Int64
    """How many rows contain this one."""
    order: Int64
    """The rows by thread and start, every row directly before what it contains."""
    key: Int64
    """Thread and start as one number, in that order."""
    thread_keys: tuple[Int64, Int64]
    """The threads, and the number at which the keys of each begin."""

    @cached_property
    def self_ns(self) -> Int64:
        """Per row, its length without what it contains."""
        length = self.end_ns - self.start_ns
        inside = self.parent != MISSING
        within = np.bincount(self.parent[inside], weights=length[inside], minlength=len(length))
        return length - within.astype(np.int64)  # a sum of ns is exact in a double for a hundred days

    def rolled_up(self, values: npt.NDArray[np.int64]) -> Int64:
        """Per row, the sum of `values` over it and all that it contains."""
        total = np.array(values, np.int64)
        by_depth = _sorted_small(self.depth)
        borders = np.searchsorted(self.depth[by_depth], np.arange(1, int(self.depth.max(initial=0)) + 2))
        for begin, end in zip(borders[-2::-1].tolist(), borders[:0:-1].tolist(), strict=True):
            rows = by_depth[begin:end]
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def innermost(self, thread: Int32 | Int64, time_ns: Int64) -> Int64:
        """Per moment on a thread, the innermost row running then (its start counts, its end does not); -1 for none."""
        threads, begins = self.thread_keys
        if not len(threads) or not len(time_ns):
            return np.full(len(time_ns), MISSING, np.int64)
        place = np.minimum(np.searchsorted(threads, thread), len(threads) - 1)
        known = threads[place] == thread
        low = begins[place]
        first = self.start_ns.min()
        wanted = low + np.maximum(time_ns - first, -1)
        at = np.searchsorted(self.key, wanted, side="right") - 1
        found = np.where(
            known & (at >= 0) & (self.key[np.maximum(at, 0)] >= low), self.order[np.maximum(at, 0)], MISSING
        )
        climbing = np.flatnonzero(found != MISSING)
        while len(climbing):
            over = self.end_ns[found[climbing]] <= time_ns[climbing]
            climbing = climbing[over]
            found[climbing] = self.parent[found[climbing]]
            climbing = climbing[found[climbing] != MISSING]
        return found


def nested(start_ns: Int64, end_ns: Int64, thread: Int32 | Int64) -> Nesting:
    """The forest of ranges; of ranges with equal times the earlier row contains the later."""
    count = len(start_ns)
    if count == 0:
        none = np.empty(0, np.int64)
        return Nesting(none, none, none, none, none, none, (none, none))
    threads = np.flatnonzero(np.bincount(thread + 1)) - 1  # threads are small numbers, -1 for unknown
    first, span = int(start_ns.min()), int(max(end_ns.max(), start_ns.max()) - start_ns.min()) + 2
    if span * len(threads) >= 1 << 62:
        raise ValueError("the recording is too long for its number of threads")
    begins = np.arange(len(threads), dtype=np.int64) * span
    bases = np.zeros(int(threads[-1]) + 2, np.int64)
    bases[threads + 1] = begins - first
    base = bases[thread + 1]
    opens, closes = base + start_ns, base + end_ns
    order = _order(thread, opens, closes)
    opens, closes = opens[order], closes[order]
    depth = _depths(opens, closes)
    parent = _parents(depth)
    ends = closes
    crossing = (parent != MISSING) & (closes > closes[np.maximum(parent, 0)])
    if crossing.any():
        where = np.searchsorted(begins, opens, side="right") - 1
        ends = closes.copy()
        for one in np.unique(where[crossing]).tolist():
            rows = slice(*np.searchsorted(where, [one, one + 1]).tolist())
            parent[rows], depth[rows], ends[rows] = _walked(opens[rows], closes[rows], rows.start)
    return _in_rows(order, opens, ends, base, parent, depth, (threads, begins))


def _in_rows(
    order: Int64, opens: Int64, ends: Int64, base: Int64, parent: Int64, depth: Int64, threads: tuple[Int64, Int64]
) -> Nesting:
    rows = np.empty((4, len(order)), np.int64)
    for row, values in zip(
        rows, (opens, ends, np.where(parent == MISSING, MISSING, order[parent]), depth), strict=True
    ):
        row[order] = values
    return Nesting(rows[0] - base, rows[1] - base, rows[2], rows[3], order, opens, threads)


def _order(thread: Int32 | Int64, opens: Int64, closes: Int64) -> Int64:
    """By thread and start, the longer first. Tables are sorted by start already, but for the order of ties."""
    order = _sorted_small(thread + 1)
    sorted_opens = opens[order]
    if (sorted_opens[1:] < sorted_opens[:-1]).any():
        order = np.argsort(opens, kind="stable")
        sorted_opens = opens[order]
    ties = np.flatnonzero(sorted_opens[1:] == sorted_opens[:-1])
    if len(ties) and (closes[order[ties + 1]] > closes[order[ties]]).any():
        tied = np.union1d(ties, ties + 1)
        rows = order[tied]
        order[tied] = rows[np.lexsort((-closes[rows], opens[rows]))]
    return order


def _sorted_small(numbers: Int32 | Int64) -> Int64:
    """A stable order of small numbers not below 0: numpy sorts those of 16 bits by counting."""
    return np.argsort(numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers, kind="stable")


def _depths(opens: Int64, closes: Int64) -> Int64:
    """Return how many earlier ranges have not ended when each one starts.

    Every range that ends at or before a start is an earlier one, but for empty ones at that very start.
    """
    count = np.arange(len(opens))
    ended = np.searchsorted(np.sort(closes), opens, side="right")
    empty = opens == closes
    if empty.any():
        empties = np.concatenate(([0], np.cumsum(empty)))
        ended = ended - (empties[np.searchsorted(opens, opens, side="right")] - empties[count])
    return count - ended


def _parents(depth: Int64) -> Int64:
    """Positions of parents, from depths in order: the last position before that is one less deep."""
    parent = np.full(len(depth), MISSING, np.int64)
    by_depth = _sorted_small(depth)
    borders = np.searchsorted(depth[by_depth], np.arange(int(depth.max(initial=0)) + 2)).tolist()
    above = by_depth[: borders[1]]
    for begin, end in pairwise(borders[1:]):
        level = by_depth[begin:end]
        parent[level] = above[np.searchsorted(above, level) - 1]
        above = level
    return parent


def _walked(opens: Int64, closes: Int64, offset: int) -> tuple[Int64, Int64, Int64]:
    """Parents, depths and cut ends of one thread's ranges, whatever they are, with a stack."""
    parents, depths, ends = [], [], closes.tolist()
    stack: list[int] = []
    for place, start in enumerate(opens.tolist()):
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            parents.append(stack[-1] + offset)
            ends[place] = min(ends[place], ends[stack[-1]])
        else:
            parents.append(MISSING)
        depths.append(len(stack))
        stack.append(place)
    return np.array(parents, np.int64), np.array(depths, np.int64), np.array(ends, np.int64)
