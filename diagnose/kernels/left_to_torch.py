"""Tells what is left to torch's own operators: derivatives and tensors that an operator registered from Python lacks.

`torch.func` takes no gradient of such an operator, and torch says of its derivatives in forward mode that they are 0.
Nor does torch know how one acts on the parts of a `DTensor`. Of plain torch it knows all of that: there the formula is
computed as eager code has it, with the values and derivatives of the fused operator, and the memory and time of none.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = ["has_tangent", "is_distributed", "left_to_torch"]

WHOLE = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def left_to_torch(*tensors: torch.Tensor | None) -> bool:
    """Whether these are within a transform of `torch.func`, have tangents, or are distributed."""
    return torch._C._are_functorch_transforms_active() or any(
        tensor is not None and (has_tangent(tensor) or is_distributed(tensor)) for tensor in tensors
    )


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether derivatives in forward mode go along."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]  # torch's
    return tangent is not None


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a `DTensor`; who has one has loaded what defines it."""
    if type(tensor) in WHOLE:
        return False
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
