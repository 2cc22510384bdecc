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

WHOLE = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def left_to_torch(*tensors: torch.Tensor | None) -> bool:
    """Whether these are within a transform of `torch.func`, have tangents, or are distributed."""
    if torch._C._are_functorch_transforms_active():
        return True
    if not torch.compiler.is_compiling() and WHOLE.issuperset(map(type, tensors)) and not has_tangents():
        return False  # as below, sooner
    given = [tensor for tensor in tensors if tensor is not None]
    return any(map(is_distributed, given)) or (has_tangents() and any(map(has_tangent, given)))


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether derivatives in forward mode go along."""
    if not has_tangents():
        return False
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]  # torch's
    return tangent is not None


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a `DTensor`; who has one has loaded what defines it."""
    if type(tensor) in WHOLE:
        return False
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def has_tangents() -> bool:
    """Whether any tensor has some."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0
