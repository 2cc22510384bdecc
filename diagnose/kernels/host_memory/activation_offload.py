"""Keeps what autograd saves in pinned memory of the host, and brings it back before the backward pass needs it.

    with offload():
        x = block(x)

Copies run on a stream of their own, beside the computation: out as soon as a tensor is saved, back in some time before
it is asked for, in the reverse order of saving. Values are those that were saved, bit for bit. Parameters, small
tensors, tensors whose elements share memory, and those of the host stay where they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from diagnose.kernels.host_memory.host_lane import HostLane

SMALLEST_BYTES = 1 << 20
"""A smaller tensor costs more in launches than its memory is worth."""
AHEAD_BYTES = 256 << 20
"""How much is on its way back before it is asked for: some milliseconds of a bus of 50 GB/s."""


class offload(torch.autograd.graph.saved_tensors_hooks):  # noqa: N801 - read as what is done in a `with` statement
    """A context within which saved tensors are kept on the host; without effect where `enabled` is False."""

    def __init__(self, enabled: bool = True) -> None:
        super().__init__(_pack, _unpack)
        self._enabled = enabled

    def __enter__(self) -> None:
        if self._enabled:
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        if self._enabled:
            super().__exit__(*error)


class _Parked:
    """One saved tensor, on the host."""

    __slots__ = ("__weakref__", "device", "dtype", "event", "host", "lane", "loaded", "number", "size", "stride")

    def __init__(self, tensor: Tensor, lane: _Lane) -> None:
        self.lane, self.number = lane, lane.next_number()
        self.size, self.stride, self.dtype, self.device = tensor.size(), tensor.stride(), tensor.dtype, tensor.device
        self.host = lane.take(tensor.numel() * tensor.element_size())
        self.loaded: Tensor | None = None
        self.event: torch.cuda.Event | None = None
        lane.copy(self.on_host, tensor)
        weakref.finalize(self, lane.gone, self.number, self.host)

    @property
    def on_host(self) -> Tensor:
        """The host's memory with the shape and the order of elements of the tensor."""
        return self.host.view(self.dtype).as_strided(self.size, self.stride)

    @property
    def size_bytes(self) -> int:
        return self.host.numel()

    def load(self) -> None:
        """Begin to bring it back."""
        if self.loaded is None:
            self.loaded = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
            self.event = self.lane.copy(self.loaded, self.on_host)

    def arrived(self) -> Tensor:
        """The tensor, for work of the current stream; the next call begins anew."""
        self.load()
        assert self.loaded is not None and self.event is not None  # as `load` leaves them
        self.lane.wait(self.event)
        tensor, self.loaded = self.loaded, None
        return tensor


class _Lane(HostLane):
    """The copies of one device, in the order in which they were asked for."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._parked: dict[int, weakref.ref[_Parked]] = {}
        self._count = 0

    def next_number(self) -> int:
        self._count += 1
        return self._count

    def gone(self, number: int, buffer: Tensor) -> None:
        """Autograd has no more use for a saved tensor: its buffer serves the next."""
        self._parked.pop(number, None)
        self.give(buffer)

    def park(self, tensor: Tensor) -> _Parked:
        parked = _Parked(tensor, self)
        self._parked[parked.number] = weakref.ref(parked)
        return parked

    def load_before(self, number: int) -> None:
        """Begin to bring back what was saved before: the backward pass will ask for it next."""
        ahead = 0
        for earlier in sorted((one for one in list(self._parked) if one < number), reverse=True):
            reference = self._parked.get(earlier)
            parked = reference() if reference is not None else None
            if parked is None:
                continue
            if ahead + parked.size_bytes > AHEAD_BYTES:
                return
            parked.load()
            ahead += parked.size_bytes


_lanes: dict[torch.device, _Lane] = {}


def _pack(tensor: Tensor) -> Tensor | _Parked:
    if not _is_worth_it(tensor):
        return tensor
    if tensor.device not in _lanes:
        _lanes[tensor.device] = _Lane(tensor.device)
    return _lanes[tensor.device].park(tensor)


def _unpack(saved: Tensor | _Parked) -> Tensor:
    if not isinstance(saved, _Parked):
        return saved
    tensor = saved.arrived()
    saved.lane.load_before(saved.number)
    return tensor


def _is_worth_it(tensor: Tensor) -> bool:
    """Whether a tensor is of the device, large, an activation, and one element a place in memory."""
    if not tensor.is_cuda or tensor.numel() * tensor.element_size() < SMALLEST_BYTES:
        return False
    base = tensor._base if tensor._is_view() else tensor
    is_parameter = base is not None and base.is_leaf and base.requires_grad
    return not is_parameter and _is_dense(tensor.size(), tensor.stride())


def _is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements fill a stretch of memory, each once, in whatever order of dimensions."""
    expected = 1
    for step, count in sorted(zip(stride, size, strict=True)):
        if count == 1:
            continue
        if step != expected:
            return False
        expected *= count
    return True
