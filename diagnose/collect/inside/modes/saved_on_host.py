"""Keeps on the host what a backward pass needs, once the device has little memory left.

A program that fills its device has no room there for its own float64 reference, which holds twice as much between
forward and backward. What is saved then waits on the host, in pinned memory, and comes back when it is asked for: the
same numbers, only later.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

LEAST_ROOM = 0.25
"""Of a device's memory, left for what the next operators hold at once: below it, saved tensors go to the host. Chosen,
not measured."""


class SavedOnHost:
    """Hooks on saved tensors, as `torch.autograd.graph.saved_tensors_hooks` takes them."""

    def __init__(self, torch_module: ModuleType, room_bytes: int, crowded: Callable[[Any], bool]) -> None:
        """`room_bytes` may lie on the host at once; `crowded` says whether a tensor's device is short of memory."""
        self._torch: Any = torch_module
        self._room_bytes = room_bytes
        self._crowded = crowded

    def pack(self, tensor: Any) -> Any:
        """The tensor, or its copy on the host with the device that it belongs to.

        Leaves live on in the program, so that a copy of one would free nothing.
        """
        size_bytes = tensor.numel() * tensor.element_size()
        if tensor.is_leaf or size_bytes > self._room_bytes or not self._crowded(tensor):
            return tensor
        held = self._torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)
        self._room_bytes -= size_bytes
        weakref.finalize(held, self._freed, size_bytes)
        return tensor.device, held

    def unpack(self, packed: Any) -> Any:
        """The tensor on its own device."""
        if not isinstance(packed, tuple):
            return packed
        device, held = packed
        return held.to(device)

    def _freed(self, size_bytes: int) -> None:
        self._room_bytes += size_bytes


def install(torch_module: ModuleType, room_bytes: int) -> None:
    """From now on, let what this thread saves for a backward pass go to the host where its device is short of memory.

    All ranks of a run together take `room_bytes` of the host at most.
    """
    torch: Any = torch_module
    if not torch.cuda.is_available():
        return

    def crowded(tensor: Any) -> bool:
        if not tensor.is_cuda:
            return False
        free, whole = torch.cuda.mem_get_info(tensor.device)
        unused = torch.cuda.memory_reserved(tensor.device) - torch.cuda.memory_allocated(tensor.device)
        return bool(free + unused < LEAST_ROOM * whole)

    hooks = SavedOnHost(torch, room_bytes // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), crowded)
    torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack).__enter__()
