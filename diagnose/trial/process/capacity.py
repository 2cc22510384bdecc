"""How many processes of a program fit side by side, and whether a program died for lack of memory."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import Float64
from diagnose.trial.process.host_memory import free_bytes

GROWTH = 1.1
"""The memory that another process of the same kind may need, as a multiple of what one was seen to hold."""
_RSS = "host.rss_bytes"
_CPU = "host.cpu"
_RESERVED = "allocator.peak_reserved_bytes"
_USED = "gpu.memory_used_bytes"
_CONTEXT_BYTES = 1 << 30  # a second process brings a device context and library workspaces of its own
_CORES_AHEAD = 8
_FULL = 0.9
"""The share of the cores, busy with one process and its workers, beyond which others that start beside it wait for
it. Below that two starts at once share the cores, and end before two that follow each other."""
_HALF = 0.5
"""The share of the cores as in `_FULL`, where what is needed only later does not start beside it."""
_STARTS_A_CORE = 1.5
"""Processes that may start at once on each core; chosen, not measured."""
_SHARES_AHEAD = (1.2, 1.2, 1.4, 1.4)  # of two originals and two patched programs

_LACK = re.compile(
    r"OutOfMemoryError|CUDA out of memory|HIP out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|can't allocate memory|not enough memory: you tried to allocate|^MemoryError|Cannot allocate memory"
    r"|unable to mmap .* bytes|No space left on device .*shm|Bus error",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that one arm holds, and the memory there is; None is unknown."""

    peak_bytes: int | None = None
    """Largest sum of live tensors on the device; the resident peak of the process where no device is in use."""
    reserved_bytes: int | None = None
    """Held by the device allocator, in use or not; None without a device."""
    free_bytes: int | None = None
    """The device's free memory while this arm holds its part."""
    device_bytes: int | None = None
    host_bytes: int | None = None
    """Resident memory of all processes of the arm."""
    busy_cores: float | None = None
    """The cores that all processes of the arm keep busy, as it was watched."""
    made_bytes: int | None = None
    """Held by the device allocator once the model and its optimizer were made, before any step."""
    made_host_bytes: int | None = None
    """Resident memory of the training process at that time."""


def fits_twice(memory: Memory) -> bool | None:
    """Whether a second process like this one fits beside it; None when that cannot be told."""
    if memory.reserved_bytes is not None and memory.free_bytes is not None:
        if memory.free_bytes < memory.reserved_bytes * GROWTH + _CONTEXT_BYTES:
            return False
    elif memory.device_bytes is not None:
        return None
    if memory.host_bytes is None:
        return None
    return free_bytes() > memory.host_bytes * GROWTH


def uncrowded(seen: Memory, before: Memory) -> Memory:
    """Return the memory seen now with the room seen before, since other processes may have been running now."""
    seen = replace(
        seen,
        busy_cores=seen.busy_cores if seen.busy_cores is not None else before.busy_cores,
        made_bytes=before.made_bytes,
        made_host_bytes=before.made_host_bytes,
    )
    rooms = [
        memory.free_bytes + memory.reserved_bytes
        for memory in (seen, before)
        if memory.free_bytes is not None and memory.reserved_bytes is not None
    ]
    if not rooms or seen.reserved_bytes is None:
        return seen
    return replace(seen, free_bytes=max(0, max(rooms) - seen.reserved_bytes))


def while_watched(traces: Sequence[Trace]) -> Memory:
    """Return the memory that the watched run held; on a device, what one process with no rank beside it held."""
    held, busy = 0.0, 0.0
    for trace in traces:
        resident = _most(trace, _RSS)
        if resident is None:
            return Memory()
        held += resident
        busy += _usual(trace, _CPU) / 100
    host_bytes, busy_cores = int(held) or None, busy or None
    if not any(trace.has_device or trace.facts.device_name is not None for trace in traces):
        return Memory(host_bytes=host_bytes, busy_cores=busy_cores)
    of_device = trace.facts.device_memory_bytes
    reserved, used = _most(trace, _RESERVED), _most(trace, _USED)
    if len(traces) > 1 or of_device is None or reserved is None or used is None:
        return Memory()
    free = max(0, of_device - int(used))
    made = [_when_made(trace, what) for what in ("reserved_bytes", "resident_bytes")]
    return Memory(None, int(reserved), free, of_device, host_bytes, busy_cores, *made)


def _when_made(trace: Trace, what: str) -> int | None:
    """Return what was held when the last optimizer was made; None where that was not seen."""
    sizes = [site.arguments.get(what) for site in trace.sites if site.kind == "optimizer"]
    return max((size for size in sizes if isinstance(size, int)), default=None)


def _most(trace: Trace, name: str) -> float | None:
    """The largest reading of a counter; None where there is none."""
    values = _readings(trace, name)
    return float(max(values)) if len(values) else None


def _usual(trace: Trace, name: str) -> float:
    """The median reading of a counter; 0 where there is none."""
    values = _readings(trace, name)
    return float(np.median(values)) if len(values) else 0.0


def _readings(trace: Trace, name: str) -> Float64:
    counters = trace.counters
    rows = counters.name == trace.names.index(name) if name in trace.names else slice(0)
    return counters.value[rows]


def at_once(memory: Memory, wanted: int, share: float = 2.0) -> int:
    """Return how many processes like this one may run at the same time, up to `wanted`; one where nothing is known.

    As many as there are cores and memory for, on the host and on the device, with every process taken to need `share`
    times what was seen.
    """
    return fitting(memory, [share] * wanted)


def fitting(memory: Memory, shares: Sequence[float], a_core: float = 1.0) -> int:
    """Return how many processes may run at the same time, from the first on, where they need different shares of what
    was seen.

    `a_core`: so many processes may have a core together.
    """
    if not memory.host_bytes:
        return 1
    host, device = float(free_bytes()), 0.0
    # One that holds little of the device is no smaller on the host than one that has only made its model.
    least = (memory.made_host_bytes or memory.host_bytes) / memory.host_bytes if memory.device_bytes is not None else 0
    if memory.device_bytes is not None:
        if memory.free_bytes is None or memory.reserved_bytes is None:
            return 1
        # What was seen held its own part of the device, and is gone.
        device = memory.free_bytes + memory.reserved_bytes
    for number, share in enumerate(shares):
        host -= max(least, share) * memory.host_bytes
        if memory.device_bytes is not None:
            device -= share * (memory.reserved_bytes or 0) + _CONTEXT_BYTES
        if host < 0 or device < 0 or number >= a_core * len(os.sched_getaffinity(0)):
            return max(1, number)
    return max(1, len(shares))


def standing_share(memory: Memory) -> float | None:
    """The share of a process's memory that it holds before its first step; None where unknown."""
    if memory.made_bytes is None or not memory.reserved_bytes:
        return None
    return GROWTH * memory.made_bytes / memory.reserved_bytes


def room_ahead(memory: Memory, peak_bytes: int | None) -> bool:
    """Whether two generations of a trial may start together; more cores make that faster, and few do not.

    `memory` was seen of one process; `peak_bytes` is the peak of what the trial starts from, where that is known.
    """
    part = peak_bytes / memory.peak_bytes if peak_bytes and memory.peak_bytes else 1.0
    shares = [part * share for share in _SHARES_AHEAD]
    return cores_ahead(memory) and fitting(memory, shares) == len(shares)


def cores_ahead(memory: Memory) -> bool:
    """Whether there are cores enough for processes to start beside others, and none to wait longer for it."""
    return _many_cores() and not _takes(memory, _HALF)


def fills_host(memory: Memory) -> bool:
    """Whether a program fills a host of many cores by its own workers: starts of several keep each other from it."""
    return _many_cores() and _takes(memory, _FULL)


def _takes(memory: Memory, share: float) -> bool:
    """Whether a process keeps more than this share of the cores busy."""
    return (memory.busy_cores or 0.0) > share * len(os.sched_getaffinity(0))


def _many_cores() -> bool:
    return len(os.sched_getaffinity(0)) >= _CORES_AHEAD


def room_to_start(memory: Memory, shares: Sequence[float]) -> bool:
    """Whether all of these may be there at once, most of them only to start early and then to rest.

    Where they are more than the cores, each start takes longer, but all at once take less than one after the other.
    """
    return cores_ahead(memory) and fitting(memory, shares, _STARTS_A_CORE) == len(shares)


def died_of_memory(last_words: str, returncode: int | None) -> bool:
    """Whether the end of the error stream, or a kill that was not ours, speaks of too little memory."""
    return bool(_LACK.search(last_words)) or returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
