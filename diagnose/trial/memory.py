"""How many processes of a program fit side by side, and whether a program died for lack of memory."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from diagnose.trace import Trace

_GROWTH = 1.1  # a patched arm may need somewhat more than the original
_RSS = "host.rss_bytes"
_CONTEXT_BYTES = 1 << 30  # a second process brings a device context and library workspaces of its own

_LACK = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|can't allocate memory|not enough memory: you tried to allocate|^MemoryError|Cannot allocate memory"
    r"|unable to mmap .* bytes|No space left on device .*shm|Bus error",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Memory:
    """What one arm holds, and what there is; None is unknown."""

    peak_bytes: int | None = None
    """Largest sum of live tensors on the device; the resident peak of the process where no device is in use."""
    reserved_bytes: int | None = None
    """Held by the device allocator, in use or not; None without a device."""
    free_bytes: int | None = None
    """Of the device, while this arm holds its part."""
    device_bytes: int | None = None
    host_bytes: int | None = None
    """Resident memory of all processes of the arm."""


def fits_twice(memory: Memory) -> bool | None:
    """Whether a second process like this one fits beside it; None when that cannot be told."""
    if memory.reserved_bytes is not None and memory.free_bytes is not None:
        if memory.free_bytes < memory.reserved_bytes * _GROWTH + _CONTEXT_BYTES:
            return False
    elif memory.device_bytes is not None:
        return None
    if memory.host_bytes is None:
        return None
    return psutil.virtual_memory().available > memory.host_bytes * _GROWTH


def while_watched(traces: Sequence[Trace]) -> Memory:
    """What the watched run of a program held on the host; nothing is known where it used a device."""
    held = 0
    for trace in traces:
        if trace.has_device or trace.facts.device_name is not None or _RSS not in trace.names:
            return Memory()
        counters = trace.counters
        held += int(max(counters.value[counters.name == trace.names.index(_RSS)], default=0))
    return Memory(host_bytes=held or None)


def at_once(memory: Memory, wanted: int, share: float = 2.0) -> int:
    """How many processes like this one may run at the same time, up to `wanted`; one where nothing is known.

    As many as there are cores and memory for, on the host and on the device, with every process taken to need `share`
    times what was seen.
    """
    if not memory.host_bytes:
        return 1
    room = psutil.virtual_memory().available / (share * memory.host_bytes)
    if memory.device_bytes is not None:
        if memory.free_bytes is None or memory.reserved_bytes is None:
            return 1
        # What was seen held its own part of the device, and is gone.
        free = memory.free_bytes + memory.reserved_bytes
        room = min(room, free / (share * memory.reserved_bytes + _CONTEXT_BYTES))
    return max(1, min(wanted, len(os.sched_getaffinity(0)), int(room)))


def died_of_memory(last_words: str, returncode: int | None) -> bool:
    """Whether the end of the error stream, or a kill that was not ours, speaks of too little memory."""
    return bool(_LACK.search(last_words)) or returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
