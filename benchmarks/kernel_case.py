"""A case of the kernel benchmark: one kernel at one size, with inputs and the ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

Ways = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Case:
    """One kernel at one size: inputs that gradients are wanted for, and the ways to compute it."""

    name: str
    inputs: tuple[Tensor, ...]
    ways: Ways
    moved_bytes: int = 0
    operations: int = 0
    compiled: Callable[..., Any] | None = None
    """What torch.compile gets: the eager way, where it is not something else."""


def values(*shape: int, scale: float = 1.0) -> Tensor:
    """Fresh bfloat16 numbers on the device, with a gradient."""
    return (torch.randn(shape, device=DEVICE) * scale).bfloat16().requires_grad_()


def sizes(largest: int, *shapes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Shapes, with no side longer than `largest`."""
    yield from dict.fromkeys(tuple(min(side, largest) for side in shape) for shape in shapes)


def liger(module: str, function: str) -> Any | None:
    """An autograd function of Liger-Kernel, where it is installed."""
    try:
        return getattr(__import__(f"liger_kernel.ops.{module}", fromlist=[function]), function, None)
    except ImportError:
        return None
