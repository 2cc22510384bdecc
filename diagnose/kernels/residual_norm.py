"""Residual add and RMSNorm in one pass each way, as the blocks of a transformer have them one after the other.

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


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    *,
    round_before_weight: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(rms_norm(x + residual) * weight, x + residual)` over the last dimension; x and residual have one shape.

    `round_before_weight` rounds the normalised value to the sum's dtype before the weight multiplies it, as Hugging
    Face's Llama does; torch's own `rms_norm` does not.
    """
    if x.shape != residual.shape:
        raise ValueError(f"what is added has one shape, not {tuple(x.shape)} and {tuple(residual.shape)}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"rows have at least one element, not {tuple(x.shape)}")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"a weight {tuple(weight.shape)} for rows of {tuple(x.shape)}")
    if left_to_torch(x, residual, weight):
        return _reference(x, residual, weight, eps, round_before_weight)
    fused = partial(_fused, eps=eps, round_before_weight=round_before_weight)
    if round_before_weight or (weight is not None and not x.dtype == residual.dtype == weight.dtype):
        return fused(x, residual, weight)  # torch has no operator for it
    native = partial(_native, eps=eps)
    pays = fused_pays("add_rms_norm", (x, residual, weight), fused, native)
    return (fused if pays else native)(x, residual, weight)


def _fused(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, round_before_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    normed, summed, _ = _added(x, residual, weight, eps, round_before_weight)
    return normed, summed


def _native(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    with without_autocast(x):
        summed = x + residual
        return torch.nn.functional.rms_norm(summed, summed.shape[-1:], weight, eps), summed


def _reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, round_before_weight: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula in plain torch."""
    summed = x + residual
    wide = summed.to(compute_dtype(summed.dtype))
    value = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if round_before_weight:
        value = value.to(summed.dtype).to(wide.dtype)
    if weight is None:
        return value.to(summed.dtype), summed
    return (value * weight.to(wide.dtype)).to(torch.promote_types(summed.dtype, weight.dtype)), summed


def _add_and_normalise(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, eps: float, round_before_weight: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normalised sum, the sum, and 1 / rms of each row."""
    normed, summed, scales = _outputs(x, residual, weight)
    if x.numel() == 0:
        return normed, summed, scales.fill_(eps**-0.5 if eps > 0 else float("inf"))
    if _in_triton(x):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import residual_norm

        weight = None if weight is None else weight.contiguous()
        residual_norm.add_and_normalise(
            rows_of(x), rows_of(residual), weight, rows_of(normed), rows_of(summed), scales, eps, round_before_weight
        )
        return normed, summed, scales
    torch.add(x.to(scales.dtype), residual.to(scales.dtype), out=summed)
    wide = summed.to(scales.dtype)
    torch.rsqrt(wide.square().mean(-1) + eps, out=scales)
    value = wide * scales.unsqueeze(-1)
    if round_before_weight:
        value = value.to(summed.dtype).to(scales.dtype)
    normed.copy_(value if weight is None else value * weight.to(scales.dtype))
    return normed, summed, scales


_add_norm = torch.library.custom_op("diagnose::add_rms_norm", _add_and_normalise, mutates_args=())


@_add_norm.register_fake
def _(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _outputs(x, residual, weight)


def _differentiate(
    by_normed: torch.Tensor,
    by_summed: torch.Tensor | None,
    summed: torch.Tensor,
    weight: torch.Tensor | None,
    scales: torch.Tensor,
    round_before_weight: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient by either addend, and by the weight (empty where there is none)."""
    by_inputs = buffer_like(summed)
    if summed.numel() == 0:
        return by_inputs, summed.new_empty(0) if weight is None else torch.zeros_like(weight.contiguous())
    if _in_triton(summed):
        from diagnose.kernels.gpu import residual_norm

        by_weight = residual_norm.gradients(
            rows_of(by_normed.contiguous()),
            None if by_summed is None else rows_of(by_summed.contiguous()),
            rows_of(summed.contiguous()),
            None if weight is None else weight.contiguous(),
            scales.contiguous(),
            rows_of(by_inputs),
            round_before_weight,
        )
    else:
        value = summed.to(scales.dtype) * scales.unsqueeze(-1)
        given, by_weight = by_normed.to(scales.dtype), None
        if weight is not None:
            factor = value.to(summed.dtype).to(scales.dtype) if round_before_weight else value
            by_weight = (given * factor).reshape(-1, len(weight)).sum(0)
            given = given * weight.to(scales.dtype)
        gradient = scales.unsqueeze(-1) * (given - value * (given * value).mean(-1, keepdim=True))
        by_inputs.copy_(gradient if by_summed is None else gradient + by_summed.to(scales.dtype))
    if weight is None or by_weight is None:
        return by_inputs, summed.new_empty(0)
    return by_inputs, by_weight.to(weight.dtype)


_add_norm_backward = torch.library.custom_op("diagnose::add_rms_norm_backward", _differentiate, mutates_args=())
_gradients = direct(_add_norm_backward, _differentiate, "torch.nn.functional.rms_norm(x + residual, …)")


@_add_norm_backward.register_fake
def _(
    _: torch.Tensor, __: torch.Tensor | None, summed: torch.Tensor, weight: torch.Tensor | None, *___: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return summed.new_empty(summed.shape), summed.new_empty(0) if weight is None else weight.new_empty(weight.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    x, residual, weight, _, ctx.round_before_weight = inputs
    _, summed, scales = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(scales)
    ctx.dtypes = x.dtype, residual.dtype
    ctx.normed_dtype = output[0].dtype
    ctx.save_for_backward(weight, summed, scales)


def _backward(
    ctx: Any, by_normed: torch.Tensor | None, by_summed: torch.Tensor | None, _: None
) -> tuple[torch.Tensor | None, ...]:
    weight, summed, scales = ctx.saved_tensors
    x_dtype, residual_dtype = ctx.dtypes
    if by_normed is None:
        if by_summed is None:
            return None, None, None, None, None
        return by_summed.to(x_dtype), by_summed.to(residual_dtype), None, None, None
    by_inputs, by_weight = _gradients(by_normed, by_summed, summed, weight, scales, ctx.round_before_weight)
    return (
        by_inputs.to(x_dtype),
        by_inputs.to(residual_dtype),
        None if weight is None or not ctx.needs_input_grad[2] else by_weight,
        None,
        None,
    )


_add_norm.register_autograd(_backward, setup_context=_keep)
_added = differentiable(_add_norm, _add_and_normalise, _keep, _backward)


def _outputs(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    summed = buffer_like(x, torch.promote_types(x.dtype, residual.dtype))
    dtype = summed.dtype if weight is None else torch.promote_types(summed.dtype, weight.dtype)
    scales = x.new_empty(x.shape[:-1], dtype=compute_dtype(summed.dtype))
    return buffer_like(x, dtype), summed, scales


def _in_triton(rows: torch.Tensor) -> bool:
    return rows.shape[-1] <= WIDEST and runs_triton(rows)
