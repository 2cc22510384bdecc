"""How much memory the process held, over time: allocated, reserved, their peaks, and how much there is.

    memory = memory_use(trace, device)
    memory.allocated.value          # bytes in use by tensors, over memory.allocated.time_ns
    memory.peak_allocated_bytes     # None where nobody recorded it
    memory.capacity_bytes

Of a device: the allocator's counters (`allocator.…`) where there are any, else what follows from its history and its
segments. Of the host (`device` -1): the resident memory of the process. Unknown is an empty series or None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.memory.history import history
from diagnose.measure.views.counters import most_common
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Int64, MemoryAction

ALLOCATED = "allocator.allocated_bytes"
RESERVED = "allocator.reserved_bytes"
_PEAK_ALLOCATED = "allocator.peak_allocated_bytes"
_PEAK_RESERVED = "allocator.peak_reserved_bytes"
_RETRIES = "allocator.retries"
_FAILURES = "allocator.failures"
_RESIDENT = "host.process_rss_bytes"


@dataclass(frozen=True, eq=False)
class Series:
    """Values over time, in order."""

    time_ns: Int64
    value: Int64

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def most(self) -> int | None:
        """The largest value; None for an empty series."""
        return int(self.value.max()) if len(self) else None

    def at(self, time_ns: Int64) -> Int64:
        """The value that held at some moments; the first one before it was read. The series is not empty."""
        return self.value[np.maximum(np.searchsorted(self.time_ns, time_ns, side="right") - 1, 0)]

    def least_within(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Per stretch of time, the least value that held in it. The series is not empty."""
        first = np.searchsorted(self.time_ns, start_ns, side="right")
        last = np.searchsorted(self.time_ns, end_ns, side="left")
        least = self.at(start_ns)
        inside = np.flatnonzero(last > first)
        if len(inside):
            borders = np.stack((first[inside], last[inside]), axis=1).ravel()
            padded = np.append(self.value, self.value[-1])
            least[inside] = np.minimum(least[inside], np.minimum.reduceat(padded, borders)[::2])
        return least


EMPTY = Series(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """The memory of one device, or of the host."""

    device: int
    """The device's ordinal; -1 is the host."""
    allocated: Series
    """Bytes in use by tensors; of the host: resident."""
    reserved: Series
    """Bytes that the allocator holds of the device, in use or not."""
    peaks: Series
    """The most that was in use so far, where somebody counted."""
    retries: Series
    """How often, so far, the allocator gave back what it had cached and tried again."""
    failed_allocations: int
    """How often it was seen to run out of memory."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    capacity_bytes: int | None
    """The device's memory; None where nobody knows, and for the host."""


def memory_use(trace: Trace, device: int) -> MemoryUse:
    """Return the recorded memory use of a device."""
    allocated, reserved = counted(trace, ALLOCATED, device), counted(trace, RESERVED, device)
    if device == MISSING:
        allocated, reserved = counted(trace, _RESIDENT, device) or allocated, EMPTY
    elif not len(allocated) and (len(trace.memory) or len(trace.segments)):
        past = history(trace, device)
        allocated, reserved = (Series(past.time_ns, past.allocated_bytes), Series(past.time_ns, past.reserved_bytes))
    peaks = [allocated.most, counted(trace, _PEAK_ALLOCATED, device).most]
    if device != MISSING:
        peaks.append(trace.facts.peak_memory_bytes)
    peak_allocated = max((peak for peak in peaks if peak is not None), default=None)
    held = (reserved.most, counted(trace, _PEAK_RESERVED, device).most)
    return MemoryUse(
        device=device,
        allocated=allocated,
        reserved=reserved,
        peaks=counted(trace, _PEAK_ALLOCATED, device),
        retries=counted(trace, _RETRIES, device),
        failed_allocations=max(counted(trace, _FAILURES, device).most or 0, _failed(trace)),
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=max((peak for peak in held if peak is not None), default=None),
        capacity_bytes=trace.facts.device_memory_bytes if device != MISSING else None,
    )


def _failed(trace: Trace) -> int:
    return int((trace.memory.action == MemoryAction.OUT_OF_MEMORY).sum())


def main_memory(trace: Trace) -> int:
    """The device whose memory matters: that of the most work, else that of the allocator's counters; -1 for none."""
    allocated = trace.counter(ALLOCATED).device.astype(np.int64)
    for devices in (trace.device.device, allocated, trace.memory.device, trace.segments.device):
        known = devices[devices >= 0]
        if len(known):
            return most_common(known)
    return MISSING


def counted(trace: Trace, name: str, device: int) -> Series:
    """The readings of a counter of a device, or of the host; empty without any."""
    counters = trace.counter(name)
    rows = (counters.device == device) & np.isfinite(counters.value)
    return Series(counters.time_ns[rows], counters.value[rows].astype(np.int64)) if rows.any() else EMPTY
