"""Linear layers that multiply in fp8: forward, the input's gradient and the weight's, each with one scale a tensor.

Activations and weights are rounded to e4m3, gradients to e5m2, scaled so that the largest magnitude of each tensor is
the largest number of its format; products are summed in float32 and rounded to bfloat16. What a layer keeps for the
backward pass is its input and its weight in fp8. Parameters, their names and the class of the layers stay what they
are, and a model that is pickled whole loads as plain layers. Rounding costs passes over memory, which a compiler
fuses with what is around them: outside `torch.compile` the products seldom gain what that costs.
"""

from collections import Counter
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from diagnose.kernels.fallbacks import left_to_torch

LEAST_WEIGHTS = 1 << 22
"""Weights of a layer; below, rounding costs about what the product gains: a GPT of 768 channels got slower (H200)."""
MOST_WIDENING = 8
"""Outputs for each input: an output layer over a vocabulary has more, and its logits want their bits."""
MULTIPLE = 16
"""Rows, inputs and outputs are multiples of it: tensor cores read 16 bytes at a time along what a product sums."""
_FIRST_WITH_FP8 = (8, 9)
_SMALLEST = 2.0**-100
"""Stands for the largest magnitude of a tensor of zeros; the scales of two such tensors still multiply in float32."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def multiply_in_fp8(model: nn.Module) -> None:
    """Let the large linear layers of a model multiply in fp8 wherever they train in bfloat16.

    Left alone: subclasses of `nn.Linear`, layers whose weight another layer has too, layers with hooks, small or odd
    sizes, and an output layer over a vocabulary. A layer computes as before without gradients, in other number formats,
    on devices without fp8, for rows that are no multiple of 16, and within transforms of `torch.func`.
    """
    torch.compiler.allow_in_graph(_Product)  # type: ignore[no-untyped-call]  # Dynamo's own tracing of it fails where sizes are symbols
    holders = Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))
    for module in model.modules():
        if _is_large_and_plain(module) and holders[id(module.weight)] == 1:
            module.forward = MethodType(forward, module)  # found before the class's own


def _is_large_and_plain(module: nn.Module) -> bool:
    if type(module) is not nn.Linear or "forward" in vars(module) or any(getattr(module, each) for each in _HOOKS):
        return False
    if type(module.weight) is not nn.Parameter:  # quantised, distributed, or computed before each call
        return False
    rows, columns = module.weight.shape
    fits = rows % MULTIPLE == columns % MULTIPLE == 0 and rows <= MOST_WIDENING * columns
    return fits and rows * columns >= LEAST_WEIGHTS


def forward(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # torch's name, callers may use it
    """The layer's output. Pickles look this name up in the class, and so find torch's own."""
    if not _trains_in_bfloat16(input, self.weight) or left_to_torch(input, self.weight, self.bias):
        return functional.linear(input, self.weight, self.bias)
    rows = input.to(torch.bfloat16).reshape(-1, input.shape[-1])
    out: torch.Tensor = _Product.apply(rows, self.weight)  # type: ignore[no-untyped-call]
    out = out.reshape(*input.shape[:-1], self.out_features)
    return out if self.bias is None else out + self.bias.to(out.dtype)


def _trains_in_bfloat16(input: torch.Tensor, weight: torch.Tensor) -> bool:
    if not torch.is_grad_enabled() or not has_fp8(input.device) or input.device != weight.device:
        return False
    if input.numel() == 0 or input.numel() // input.shape[-1] % MULTIPLE:
        return False
    formats = (input.dtype, weight.dtype)
    if torch.is_autocast_enabled(input.device.type):
        wide = (torch.bfloat16, torch.float32)
        return torch.get_autocast_dtype(input.device.type) == torch.bfloat16 and all(each in wide for each in formats)
    return formats == (torch.bfloat16, torch.bfloat16)


def has_fp8(device: torch.device) -> bool:
    """Whether a device has tensor cores that multiply these formats."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= _FIRST_WITH_FP8


def _rounded(tensor: torch.Tensor, format_: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor in fp8, and what its elements are to be multiplied by."""
    most = torch.finfo(format_).max
    scale = most / tensor.abs().amax().float().clamp(min=_SMALLEST)
    return (tensor.float() * scale).clamp(-most, most).to(format_), scale.reciprocal()


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, *, fast: bool = False
) -> torch.Tensor:
    """`a @ b.t()` in bfloat16, of two matrices whose rows are contiguous. `fast`: sums keep fewer bits on the way."""
    out: torch.Tensor = torch._scaled_mm(
        a, b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast
    )
    return out


class _Product(torch.autograd.Function):
    """`rows @ weight.t()` of two matrices, with its gradients."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        narrow, scale = _rounded(rows, torch.float8_e4m3fn)
        weights, weight_scale = _rounded(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(narrow, scale, weights, weight_scale)
        ctx.weight_format = weight.dtype
        return _multiplied(narrow, weights, scale, weight_scale, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        rows, scale, weights, weight_scale = ctx.saved_tensors
        narrow, out_scale = _rounded(gradient, torch.float8_e5m2)
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = _multiplied(narrow, weights.t().contiguous(), out_scale, weight_scale)
        if ctx.needs_input_grad[1]:
            of_weight = _multiplied(narrow.t().contiguous(), rows.t().contiguous(), out_scale, scale)
            of_weight = of_weight.to(ctx.weight_format)
        return of_rows, of_weight
