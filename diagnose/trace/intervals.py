"""Sets of time as sorted, disjoint intervals: union, intersection, difference, gaps, covered length per window.

Everything is exact int64 nanoseconds and vectorised; each operation costs a sort at most. Overlap, disorder, duplicates
and empty intervals are normal input: device work may overlap on one stream, so nothing here chains previous ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from diagnose.trace.schema import Bool, Int64

_EARLIEST = np.iinfo(np.int64).min
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False, slots=True)
class Intervals:
    """Half-open stretches [start, end) of time, sorted, disjoint, not touching, none of them empty."""

    starts: Int64
    ends: Int64

    @classmethod
    def of(cls, starts: Any, ends: Any) -> Self:
        """The union of any intervals, in any order; those without length are dropped."""
        begin, finish = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        real = finish > begin
        if not real.all():
            begin, finish = begin[real], finish[real]
        if len(begin) == 0:
            return cls.empty()
        if (begin[1:] < begin[:-1]).any():
            order = np.argsort(begin, kind="stable")  # stable: real traces are nearly sorted, which it exploits
            begin, finish = begin[order], finish[order]
        reach = np.maximum.accumulate(finish)
        opens = np.concatenate(([True], begin[1:] > reach[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return cls(begin[opens], reach[closes])

    @classmethod
    def of_rows(cls, table: Any, rows: Any) -> Self:
        """The union of the times of some rows of a table of a trace; `rows` are numbers or a mask."""
        return cls.of(table.start_ns[rows], table.end_ns[rows])

    @classmethod
    def empty(cls) -> Self:
        """No time at all."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def union(cls, sets: Iterable[Intervals]) -> Self:
        """All time that lies in any of the sets."""
        parts = list(sets)
        if not parts:
            return cls.empty()
        return cls.of(np.concatenate([part.starts for part in parts]), np.concatenate([part.ends for part in parts]))

    @property
    def total_ns(self) -> int:
        """The length of all intervals together."""
        return int((self.ends - self.starts).sum())

    @property
    def lengths_ns(self) -> Int64:
        """The length of each interval."""
        return self.ends - self.starts

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        return hash((self.starts.tobytes(), self.ends.tobytes()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{start}–{end}" for start, end in list(self)[:6])
        return f"Intervals({shown}{', …' if len(self) > 6 else ''})"

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union((self, other))

    def __and__(self, other: Intervals) -> Intervals:
        # The others that an interval meets are neighbours; disjointness bounds all pairs by the sum of both lengths.
        first = np.searchsorted(other.ends, self.starts, side="right")
        count = np.searchsorted(other.starts, self.ends, side="left") - first
        mine = np.repeat(np.arange(len(self)), count)
        theirs = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        return Intervals(
            np.maximum(self.starts[mine], other.starts[theirs]), np.minimum(self.ends[mine], other.ends[theirs])
        )

    def __sub__(self, other: Intervals) -> Intervals:
        return self & other._complement(_EARLIEST, _LATEST)

    def within(self, start: int, end: int) -> Intervals:
        """The part that lies in one window."""
        return self & Intervals.of([start], [end])

    def gaps(self, start: int, end: int) -> Intervals:
        """The rest of one window: its time outside these intervals."""
        return Intervals.of([start], [end]) - self

    def at_least(self, length_ns: int) -> Intervals:
        """Return the intervals that last `length_ns` or longer."""
        long = self.ends - self.starts >= length_ns
        return Intervals(self.starts[long], self.ends[long])

    def joined(self, gap_ns: int) -> Intervals:
        """Close every gap shorter than `gap_ns`."""
        if len(self) == 0:
            return self
        wide = self.starts[1:] - self.ends[:-1] >= gap_ns
        return Intervals(self.starts[np.append(True, wide)], self.ends[np.append(wide, True)])

    def covered(self, starts: Any, ends: Any) -> Int64:
        """Return the covered time of each window [start, end); windows may overlap and come in any order."""
        begin, finish = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        return np.asarray(np.maximum(self._covered_before(finish) - self._covered_before(begin), 0), np.int64)

    def contains(self, times: Any) -> Bool:
        """Whether each moment lies in an interval (its start does, its end does not)."""
        moments = np.asarray(times, np.int64)
        if len(self) == 0:
            return np.zeros(moments.shape, np.bool_)
        index = np.searchsorted(self.starts, moments, side="right") - 1
        return np.asarray((index >= 0) & (moments < self.ends[np.maximum(index, 0)]), np.bool_)

    def _covered_before(self, times: Int64) -> Int64:
        if len(self) == 0:
            return np.zeros(times.shape, np.int64)
        before = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, times, side="right")
        last = np.maximum(index - 1, 0)
        beyond = np.where(index > 0, np.maximum(self.ends[last] - times, 0), 0)
        return np.asarray(before[index] - beyond, np.int64)

    def _complement(self, start: int, end: int) -> Intervals:
        begin = np.concatenate((np.array([start], np.int64), self.ends))
        return Intervals(begin, np.concatenate((self.starts, np.array([end], np.int64))))
