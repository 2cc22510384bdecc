"""Whether two arms fit side by side, and whether a program died for lack of memory."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

import psutil

_GROWTH = 1.1  # a patched arm may need somewhat more than the original
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


def died_of_memory(last_words: str, returncode: int | None) -> bool:
    """Whether the end of the error stream, or a kill that was not ours, speaks of too little memory."""
    return bool(_LACK.search(last_words)) or returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
