"""Residual add and LayerNorm in one pass each way, as the blocks of a transformer have them one after the other.

Written as two, the sum is written and read again, and the backward pass adds the two gradients of the sum in a pass of
its own. Here each tensor is read once and written once: 8 bytes an element forward in bfloat16, 8 backward.

Where Triton runs, rows wider than its program holds (16384) take the plain way, and sizes at which torch's own two
operators are the faster ones take those. Sums are kept in float32 (float64 for float64).
"""

from functools import partial
from typing import Any

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton, without_autocast
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.launch.tuning import fused_pays
from diagnose.kernels.layout import buffer_like, rows_of

WIDEST = 16384
"""Columns of a row beyond which Triton's program, which holds one, would spill registers."""


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(layer_norm(x + residual) * weight + bias, x + residual)` over the last dimension, of one shape."""
    if x.shape != residual.shape:
        raise ValueError(f"what is added has one shape, not {tuple(x.shape)} and {tuple(residual.shape)}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"rows have at least one element, not {tuple(x.shape)}")
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and part.shape != x.shape[-1:]:
            raise ValueError(f"a {name} {tuple(part.shape)} for rows of {tuple(x.shape)}")
    inputs = x, residual, weight, bias
    if left_to_torch(*inputs):
        return _reference(*inputs, eps)
    fused, native = partial(_fused, eps=eps), partial(_native, eps=eps)
    if any(part is not None and part.dtype != x.dtype for part in inputs):
        return fused(*inputs)  # torch has no operator for it
    return (fused if fused_pays("add_layer_norm", inputs, fused, native) else native)(*inputs)


def _fused(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, summed, _, _ = _added(x, residual, weight, bias, eps)
    return normed, summed


def _native(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    with without_autocast(x):
        summed = x + residual
        return torch.nn.functional.layer_norm(summed, summed.shape[-1:], weight, bias, eps), summed


def _reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in plain torch."""
    summed = x + residual
    dtype, wide = summed.dtype, summed.to(compute_dtype(summed.dtype))
    centred = wide - wide.mean(-1, keepdim=True)
    value = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        dtype, value = torch.promote_types(dtype, weight.dtype), value * weight.to(wide.dtype)
    if bias is not None:
        dtype, value = torch.promote_types(dtype, bias.dtype), value + bias.to(wide.dtype)
    return value.to(dtype), summed


def _add_and_normalise(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised sum, the sum, and of each row its mean and 1 / its standard deviation."""
    normed, summed, means, scales = _outputs(x, residual, weight, bias)
    if x.numel() == 0:
        return normed, summed, means, scales
    if _in_triton(x):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import residual_layer_norm

        weight, bias = _contiguous(weight), _contiguous(bias)
        residual_layer_norm.add_and_normalise(
            rows_of(x), rows_of(residual), weight, bias, rows_of(normed), rows_of(summed), means, scales, eps
        )
        return normed, summed, means, scales
    torch.add(x.to(scales.dtype), residual.to(scales.dtype), out=summed)
    wide = summed.to(scales.dtype)
    torch.mean(wide, -1, out=means)
    centred = wide - means.unsqueeze(-1)
    torch.rsqrt(centred.square().mean(-1) + eps, out=scales)
    value = centred * scales.unsqueeze(-1)
    value = value if weight is None else value * weight.to(scales.dtype)
    normed.copy_(value if bias is None else value + bias.to(scales.dtype))
    return normed, summed, means, scales


_add_norm = torch.library.custom_op("diagnose::add_layer_norm", _add_and_normalise, mutates_args=())


@_add_norm.register_fake
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, _: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _outputs(x, residual, weight, bias)


def _differentiate(
    by_normed: torch.Tensor,
    by_summed: torch.Tensor | None,
    summed: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    means: torch.Tensor,
    scales: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradient by either addend, by the weight and by the bias (empty where there is none)."""
    if summed.numel() == 0:
        by_inputs, by_weight, by_bias = _gradient_outputs(summed, weight, bias)
        return by_inputs, by_weight.zero_(), by_bias.zero_()
    by_inputs = buffer_like(summed)
    if _in_triton(summed):
        from diagnose.kernels.gpu import residual_layer_norm

        sums = residual_layer_norm.gradients(
            rows_of(by_normed.contiguous()),
            None if by_summed is None else rows_of(by_summed.contiguous()),
            rows_of(summed.contiguous()),
            _contiguous(weight),
            bias,
            means.contiguous(),
            scales.contiguous(),
            rows_of(by_inputs),
        )
    else:
        value = (summed.to(scales.dtype) - means.unsqueeze(-1)) * scales.unsqueeze(-1)
        given = by_normed.to(scales.dtype)
        sums = [
            None if part is None else rows.reshape(-1, len(part)).sum(0).to(part.dtype)
            for part, rows in ((weight, given * value), (bias, given))
        ]
        given = given if weight is None else given * weight.to(scales.dtype)
        along = (given * value).mean(-1, keepdim=True)
        gradient = scales.unsqueeze(-1) * (given - given.mean(-1, keepdim=True) - value * along)
        by_inputs.copy_(gradient if by_summed is None else gradient + by_summed.to(scales.dtype))
    by_weight, by_bias = (summed.new_empty(0) if part is None else part for part in sums)
    return by_inputs, by_weight, by_bias


_add_norm_backward = torch.library.custom_op("diagnose::add_layer_norm_backward", _differentiate, mutates_args=())
_gradients = direct(_add_norm_backward, _differentiate, "torch.nn.functional.layer_norm(x + residual, …)")


@_add_norm_backward.register_fake
def _(
    _: torch.Tensor,
    __: torch.Tensor | None,
    summed: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *___: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _gradient_outputs(summed, weight, bias)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, residual, weight, bias, _ = inputs
    _, summed, means, scales = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(means, scales)
    ctx.dtypes = x.dtype, residual.dtype
    ctx.save_for_backward(weight, bias, summed, means, scales)


def _backward(
    ctx: Any, by_normed: torch.Tensor | None, by_summed: torch.Tensor | None, *_: None
) -> tuple[torch.Tensor | None, ...]:
    weight, bias, summed, means, scales = ctx.saved_tensors
    x_dtype, residual_dtype = ctx.dtypes
    if by_normed is None:
        if by_summed is None:
            return None, None, None, None, None
        return by_summed.to(x_dtype), by_summed.to(residual_dtype), None, None, None
    by_inputs, by_weight, by_bias = _gradients(by_normed, by_summed, summed, weight, bias, means, scales)
    return (
        by_inputs.to(x_dtype),
        by_inputs.to(residual_dtype),
        None if weight is None or not ctx.needs_input_grad[2] else by_weight,
        None if bias is None or not ctx.needs_input_grad[3] else by_bias,
        None,
    )


_add_norm.register_autograd(_backward, setup_context=_keep)
_added = differentiable(_add_norm, _add_and_normalise, _keep, _backward)


def _outputs(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    summed = buffer_like(x, torch.promote_types(x.dtype, residual.dtype))
    dtype = summed.dtype
    for part in (weight, bias):
        dtype = dtype if part is None else torch.promote_types(dtype, part.dtype)
    means = x.new_empty(x.shape[:-1], dtype=compute_dtype(summed.dtype))
    return buffer_like(x, dtype), summed, means, torch.empty_like(means)


def _gradient_outputs(
    summed: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contiguous, whatever the layouts of the inputs."""
    return (
        buffer_like(summed),
        summed.new_empty(0) if weight is None else weight.new_empty(weight.shape),
        summed.new_empty(0) if bias is None else bias.new_empty(bias.shape),
    )


def _in_triton(rows: torch.Tensor) -> bool:
    return rows.shape[-1] <= WIDEST and runs_triton(rows)


def _contiguous(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()
