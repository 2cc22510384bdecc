"""Keeps on the host what a backward pass needs, once the device has little memory left.

A program that fills more than half of its device has no room there for its own float64 reference, which holds twice as
much between forward and backward. What is saved then waits on the host and comes back when it is asked for: the same
numbers, only later.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

LEAST_ROOM = 0.4
"""The share of a device's memory that is left to the next operators: while less is free, saved tensors go to the host.
Of 80 GB it is 32: in float64, the logits of a GPT for 16 sequences of 1024 tokens, their gradient and copies of both
take 26."""
LEAST_BYTES = 1 << 20
"""Smaller tensors stay where they are: to ask how much room a device has takes 0.2 ms."""


class SavedOnHost:
    """Hooks on saved tensors, as `torch.autograd.graph.saved_tensors_hooks` takes them."""

    def __init__(self, room_bytes: int, crowded: Callable[[Any], bool]) -> None:
        """`room_bytes` may lie on the host at once; `crowded` says whether a tensor's device is short of memory."""
        self._room_bytes = room_bytes
        self._crowded = crowded

    def pack(self, tensor: Any) -> Any:
        """The tensor, or its copy on the host with the device that it belongs to.

        What the program holds anyway, parameters and views of less memory, would free nothing. The tensor itself, where
        it is an operator's output, would keep its graph alive for ever.
        """
        size_bytes = tensor.numel() * tensor.element_size()
        if size_bytes < LEAST_BYTES or not self._may_go(tensor, size_bytes) or not self._crowded(tensor):
            return tensor.detach()
        held = tensor.detach().to("cpu", copy=True)
        self._room_bytes -= size_bytes
        weakref.finalize(held, self._freed, size_bytes)
        return tensor.device, held

    def unpack(self, packed: Any) -> Any:
        """The tensor on its own device."""
        if not isinstance(packed, tuple):
            return packed
        device, held = packed
        return held.to(device)

    def _may_go(self, tensor: Any, size_bytes: int) -> bool:
        held_elsewhere = tensor.is_leaf and tensor.requires_grad
        # Wrappers, as of distributed tensors, do not all say what memory they have.
        plain = type(tensor).__qualname__ == "Tensor" and str(tensor.layout) == "torch.strided" and not tensor.is_nested
        whole = plain and tensor.untyped_storage().nbytes() >= size_bytes
        return whole and not held_elsewhere and size_bytes <= self._room_bytes

    def _freed(self, size_bytes: int) -> None:
        self._room_bytes += size_bytes


def install(torch_module: ModuleType, room_bytes: int) -> None:
    """Until its process ends, let what this thread saves for a backward pass go to the host where its device is full.

    All ranks of a run together take `room_bytes` of the host at most. To be called before the program has entered hooks
    of its own, which stand above these.
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

    hooks = SavedOnHost(room_bytes // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), crowded)
    torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack).__enter__()
