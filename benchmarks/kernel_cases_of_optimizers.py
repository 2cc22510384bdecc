"""Steps of optimizers over the parameters of a model, beside what programs do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from kernel_case import DEVICE, Case, Ways, sizes
from torch import Tensor

from diagnose import kernels

TENSORS = 16


class Stepping:
    """A step over parameters whose gradients and state are made in the first call."""

    def __init__(self, make: Callable[[Sequence[Tensor]], Callable[[], Any]]) -> None:
        self._make = make
        self._step: Callable[[], Any] | None = None

    def __call__(self, *params: Tensor) -> Any:
        if self._step is None:
            for param in params:
                param.grad = torch.randn_like(param)
            self._step = self._make(params)
        return self._step()


def adamw(largest: int) -> Iterator[Case]:
    """bfloat16 parameters with float32 moments: with float32 masters, and without."""
    for rows, width in sizes(largest, (4096, 4096), (4095, 4095), (768, 768)):
        params = tuple(torch.randn(rows, width, device=DEVICE).bfloat16() for _ in range(TENSORS))
        count = TENSORS * rows * width
        ways: Ways = {
            "ours": Stepping(lambda params: kernels.AdamW(params, master_weights=True).step),
            "eager": Stepping(_copied_masters),
        }
        # The gradient in, both moments and the master in and out, the parameter out.
        name = f"AdamW, {TENSORS}×{rows}×{width}"
        yield Case(f"{name}, masters", params, ways, moved_bytes=28 * count, compiled=Stepping(_copied_masters))
        ways = {
            "ours": Stepping(lambda params: kernels.AdamW(params).step),
            "eager": Stepping(_widened),
            "torch's, moments in bfloat16": Stepping(lambda params: torch.optim.AdamW(params, fused=True).step),
        }
        # The gradient in, both moments and the parameter in and out.
        yield Case(f"{name}, wide moments", params, ways, moved_bytes=22 * count, compiled=Stepping(_widened))


def _copied_masters(params: Sequence[Tensor]) -> Callable[[], None]:
    """Update master weights as programs do: widen the gradients, run torch's fused kernel, round the masters."""
    masters = [param.float() for param in params]
    for master in masters:
        master.grad = torch.empty_like(master)
    gradients = [master.grad for master in masters if master.grad is not None]
    optimizer = torch.optim.AdamW(masters, fused=True)

    def step() -> None:
        torch._foreach_copy_(gradients, [param.grad for param in params if param.grad is not None])
        optimizer.step()
        torch._foreach_copy_(list(params), masters)

    return step


def _widened(params: Sequence[Tensor]) -> Callable[[], None]:
    """The formula over lists of tensors, in float32: torch's own kernels take one dtype alone."""
    means, squares = ([torch.zeros_like(param, dtype=torch.float32) for param in params] for _ in range(2))
    counted = [0]

    def step() -> None:
        counted[0] += 1
        wide = [param.grad.float() for param in params if param.grad is not None]
        torch._foreach_lerp_(means, wide, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, wide, wide, 0.001)
        sizes = torch._foreach_sqrt(squares)
        torch._foreach_div_(sizes, (1.0 - 0.999 ** counted[0]) ** 0.5)
        torch._foreach_add_(sizes, 1e-8)
        updated = [param.float() for param in params]
        torch._foreach_mul_(updated, 1.0 - 1e-5)
        torch._foreach_addcdiv_(updated, means, sizes, -1e-3 / (1.0 - 0.9 ** counted[0]))
        torch._foreach_copy_(list(params), updated)

    return step
