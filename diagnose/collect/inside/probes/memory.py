"""Reads what the process holds in memory, at the ends of steps: always at the same place, so that growth shows.

The caching allocator's figures of the device in use, and the resident memory of the process. A reading takes some 30 µs
and is made every `EVERY_NS` at most, but at the end of each of the first steps: runs may be short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ...records import COUNTERS
from ..guard import guarded
from ..process_hooks import ProcessHooks
from ..resident_memory import resident_bytes
from ..writer import encode

EVERY_NS = 50_000_000
FIRST = 10
"""Readings that are made at every step: as many as there are steps before tracing may begin."""
HOST = -1
"""The device number of counters that belong to the host."""

_STATISTICS = {
    "allocator.allocated_bytes": ("allocated_bytes", "all", "current"),
    "allocator.peak_allocated_bytes": ("allocated_bytes", "all", "peak"),
    "allocator.reserved_bytes": ("reserved_bytes", "all", "current"),
    "allocator.peak_reserved_bytes": ("reserved_bytes", "all", "peak"),
    "allocator.inactive_bytes": ("inactive_split_bytes", "all", "current"),
    "allocator.segments": ("segment", "all", "current"),
    "allocator.retries": ("num_alloc_retries",),
    "allocator.failures": ("num_ooms",),
}


class MemoryReadings:
    """The readings of one process; `drain` gives new ones."""

    def __init__(self, hub: ProcessHooks) -> None:
        self._hub = hub
        self._last_ns = 0
        self._count = 0
        self._new: list[str] = []
        self.peak_bytes: int | None = None
        """The most that tensors were ever read to hold: the program may reset the allocator's own peak."""
        self.held_bytes: int | None = None
        """The bytes that tensors held when last read."""
        self.step_ended: Callable[[int], None] = guarded(self._step_ended)

    def _step_ended(self, end_ns: int) -> None:
        if self._count < FIRST or end_ns - self._last_ns >= EVERY_NS:
            self.read(end_ns)

    def read(self, now_ns: int | None = None) -> None:
        """Read now; times of readings at ends of steps are those of the steps."""
        now = self._last_ns = now_ns if now_ns is not None else time.time_ns()
        self._count += 1
        figures = statistics(self._hub.torch)
        if figures:
            device = int(self._hub.torch.cuda.current_device())  # type: ignore[union-attr]  # it has figures
            self.peak_bytes = max(self.peak_bytes or 0, figures.get("allocator.peak_allocated_bytes", 0))
            self.held_bytes = figures.get("allocator.allocated_bytes")
            self._new.append(encode({"t": now, "d": device, "v": figures}) + "\n")
        resident = resident_bytes()
        if resident:
            self._new.append(f'{{"t":{now},"d":{HOST},"v":{{"host.process_rss_bytes":{resident}}}}}\n')

    def saw_peak(self, peak_bytes: int) -> None:
        """The allocator's peak is about to be reset."""
        self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)

    def drain(self) -> Iterator[tuple[str, str]]:
        """Lines for the file of counters."""
        new, self._new = self._new, []
        yield COUNTERS, "".join(new)


def statistics(torch: Any) -> dict[str, int] | None:
    """The caching allocator's figures of the device in use; None without one."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    nested = torch.cuda.memory_stats_as_nested_dict()
    found = {name: _at(nested, path) for name, path in _STATISTICS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _at(nested: Any, path: tuple[str, ...]) -> int | None:
    for key in path:
        nested = nested.get(key) if isinstance(nested, dict) else None
    return nested if isinstance(nested, int) else None
