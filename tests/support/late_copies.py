"""A copy engine that does what it was asked for as late as it may: it finds who reads too soon."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor


class Device:
    """A copy engine that does what it was asked for as late as it may, and the memory of its device.

    What a copy is to write holds nan until it is waited for, so that whoever reads too soon computes with nan.
    """

    def __init__(self) -> None:
        self.others_bytes = 0
        """What the program holds, but for states that were brought back."""
        self.back_bytes = 0
        self.most_bytes = 0
        self.copies_back: list[str] = []
        self.doing = "nothing"
        self.room = True
        self.stream = 0
        self._queue: list[Callable[[], object]] = []
        self._buffers: dict[int, Tensor] = {}

    def lane(self, _device: torch.device) -> Device:
        return self

    def take(self, size_bytes: int) -> Tensor:
        buffer = torch.empty(size_bytes, dtype=torch.uint8)
        self._buffers[buffer.data_ptr()] = buffer
        return buffer

    def give(self, buffer: Tensor) -> None:
        """The next may write it, behind all that was asked for until now."""
        self._queue.append(lambda: buffer.fill_(255))

    def copy(self, to: Tensor, source: Tensor) -> Arrival:
        if to.data_ptr() not in self._buffers:
            if not self.room:
                raise torch.OutOfMemoryError("none left")
            self.copies_back.append(self.doing)
            self.back_bytes += to.nbytes
            weakref.finalize(to, self._freed, to.nbytes)
        else:
            source = source.clone()  # the allocator keeps memory that is still read, and counts it as free
        to.fill_(float("nan"))
        self._queue.append(partial(_written, weakref.ref(to), source))
        self.most_bytes = max(self.most_bytes, self.held_bytes())
        return Arrival(self, len(self._queue))

    def wait(self, event: Arrival) -> None:
        event.synchronize()

    def current(self) -> int:
        return self.stream

    def held_bytes(self) -> int:
        return self.others_bytes + self.back_bytes

    def do_until(self, count: int) -> None:
        for at in range(count):
            self._queue[at]()
            self._queue[at] = lambda: None

    def _freed(self, size_bytes: int) -> None:
        self.back_bytes -= size_bytes


def _written(to: weakref.ref[Tensor], source: Tensor) -> None:
    """A copy to what may not be wanted any more."""
    if (wanted := to()) is not None:
        wanted.copy_(source)


class Arrival:
    """A copy's event."""

    def __init__(self, device: Device, count: int) -> None:
        self._device, self._count = device, count

    def synchronize(self) -> None:
        self._device.do_until(self._count)
