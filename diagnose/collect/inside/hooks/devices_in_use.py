"""Finds the devices that a process trains on: a program may put all on `cuda:1` and never make that the current one."""

from __future__ import annotations

from typing import Any


def in_use(torch: Any) -> list[int]:
    """Ordinals of the devices on which tensors lie, that with most of them first; none before any is in use.

    The current device is among them in any case. Where memory does not come from torch's own allocator it is the only
    one: others cannot be asked what they hold without being taken into use by the question.
    """
    cuda = torch.cuda
    if not cuda.is_initialized():
        return []
    current = int(cuda.current_device())
    if cuda.device_count() < 2 or cuda.get_allocator_backend() != "native":
        return [current]
    held = {ordinal: int(cuda.memory_reserved(ordinal)) for ordinal in range(cuda.device_count())}
    found = [ordinal for ordinal, count in held.items() if count or ordinal == current]
    return sorted(found, key=lambda ordinal: (-held[ordinal], ordinal != current))
