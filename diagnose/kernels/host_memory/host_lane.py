"""Copies between a device and pinned memory of the host, beside the computation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostLane:
    """Copies between the host and one device, in both directions.

    One stream for both ways: a buffer of the host that is given back is written again only after it has been read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._free: dict[int, list[Tensor]] = {}

    def take(self, size_bytes: int) -> Tensor:
        """A pinned buffer of so many bytes: to pin memory takes long, so that buffers are kept."""
        free = self._free.get(size_bytes)
        return free.pop() if free else torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def give(self, buffer: Tensor) -> None:
        """Return a buffer, for the next that takes one of its size."""
        self._free.setdefault(buffer.numel(), []).append(buffer)

    def copy(self, to: Tensor, source: Tensor) -> torch.cuda.Event:
        """Copy behind all that the current stream was given so far, and beside what it is given from now on."""
        on_device = to if to.is_cuda else source
        self._stream.wait_stream(torch.cuda.current_stream(on_device.device))
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
            on_device.record_stream(self._stream)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return event

    def current(self) -> int:
        """The stream that is given work now."""
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream

    def held_bytes(self) -> int:
        """The bytes of device memory that tensors hold."""
        known = torch.cuda.memory_stats_as_nested_dict(self._device)
        return int(known["allocated_bytes"]["all"]["current"])

    def wait(self, event: torch.cuda.Event) -> None:
        """Let the current stream go on when a copy is there."""
        torch.cuda.current_stream(self._device).wait_event(event)
