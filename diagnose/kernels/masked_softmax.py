"""Softmax over scaled and masked rows in one pass each way, as attention that is written out has them.

Eager code scales, masks and normalises in passes of their own, and keeps what each of them made. Here scores are read
once and shares are written once; the backward pass reads shares and their gradient. What causality forbids is not read
at all. A row of which nothing is left has shares of 0 and gradients of 0, as
`torch.nn.functional.scaled_dot_product_attention` has them, where `torch.softmax` would make it nan.

Arithmetic is in float32 (float64 for float64), rounded once to the dtype of the scores.
"""

from typing import Any

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.layout import buffer_like, with_unit_stride


def softmax(
    scores: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0, *, causal: bool = False
) -> torch.Tensor:
    """`softmax(scores * scale + mask, dim=-1)` of scores (..., T, S), in their dtype.

    `mask` broadcasts against the scores: a boolean one says what takes part, any other is added. `causal` leaves to
    row t the columns up to t, as `scaled_dot_product_attention` does.
    """
    if scores.dim() < (2 if causal else 1) or not scores.is_floating_point():
        raise ValueError(f"{tuple(scores.shape)} in {scores.dtype} are no rows of scores")
    if isinstance(scale, torch.Tensor):  # type: ignore[unreachable]  # by those who check types
        raise TypeError("the scale is a number: one in a tensor would get no gradient")
    if mask is not None:
        sizes = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
        if mask.dim() > scores.dim() or any(one not in (1, size) for one, size in sizes):
            raise ValueError(f"a mask {tuple(mask.shape)} does not broadcast against scores {tuple(scores.shape)}")
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(f"a mask says what takes part (bool) or is added (floating point), it is not {mask.dtype}")
    if scores.dim() > 4:
        rows = scores.flatten(0, -4)
        if mask is not None and mask.dim() > 3:
            mask = mask.expand(*scores.shape[:-3], *mask.shape[-3:]).flatten(0, -4)
    else:
        rows = scores if scores.dim() == 4 else scores[(None,) * (4 - scores.dim())]
    whole = left_to_torch(scores, mask)
    shares: torch.Tensor = (_reference if whole else _shared)(rows, mask, scale, causal)
    return shares if scores.dim() == 4 else shares.reshape(scores.shape)


def _normalise(scores: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool) -> torch.Tensor:
    """The shares of scores (A, B, T, S)."""
    shares = buffer_like(scores)
    if shares.numel() == 0:
        return shares
    dtype = compute_dtype(scores.dtype)
    if runs_triton(scores):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import masked_softmax

        mask = None if mask is None else mask.expand(scores.shape)
        masked_softmax.normalise(with_unit_stride(scores), mask, shares, scale, causal, dtype)
        return shares
    return shares.copy_(_reference(scores, mask, scale, causal))


def _reference(scores: torch.Tensor, mask: torch.Tensor | None, scale: float, causal: bool) -> torch.Tensor:
    """The formula in plain torch."""
    wide = scores.to(compute_dtype(scores.dtype)) * scale
    nothing = float("-inf")
    if causal:
        wide = wide.masked_fill(_later(scores), nothing)
    if mask is not None:
        wide = wide.masked_fill(~mask, nothing) if mask.dtype == torch.bool else wide + mask.to(wide.dtype)
    empty = (wide == nothing).all(-1, keepdim=True)
    # Filled before and after: the gradient of a row without a share would be nan, although nothing comes of it.
    return torch.softmax(wide.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0).to(scores.dtype)


_softmax = torch.library.custom_op("diagnose::softmax", _normalise, mutates_args=())


@_softmax.register_fake
def _(scores: torch.Tensor, *_: Any) -> torch.Tensor:
    return buffer_like(scores)


def _differentiate(
    by_shares: torch.Tensor, shares: torch.Tensor, scale: float, causal: bool, wide: bool
) -> torch.Tensor:
    """The gradient by the scores (A, B, T, S), in the dtype of the shares or, where `wide`, of sums over them."""
    by_scores = _gradient_output(shares, wide)
    if by_scores.numel() == 0:
        return by_scores
    dtype = compute_dtype(shares.dtype)
    if runs_triton(shares):
        from diagnose.kernels.gpu import masked_softmax

        masked_softmax.gradients(by_shares.contiguous(), shares.contiguous(), by_scores, scale, causal, dtype)
        return by_scores
    share, given = shares.to(dtype), by_shares.to(dtype)
    if causal:
        given = given.masked_fill(_later(shares), 0.0)
    return by_scores.copy_(share * (given - (share * given).sum(-1, keepdim=True)) * scale)


_softmax_backward = torch.library.custom_op("diagnose::softmax_backward", _differentiate, mutates_args=())
_gradients = direct(_softmax_backward, _differentiate, "torch.softmax(scores * scale + mask, dim=-1)")


@_softmax_backward.register_fake
def _(_: torch.Tensor, shares: torch.Tensor, __: float, ___: bool, wide: bool) -> torch.Tensor:
    return _gradient_output(shares, wide)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, mask, ctx.scale, ctx.causal = inputs
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)
    ctx.save_for_backward(output)


def _backward(ctx: Any, by_shares: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (shares,) = ctx.saved_tensors
    if not ctx.needs_input_grad[1]:
        return _gradients(by_shares, shares, ctx.scale, ctx.causal, False), None, None, None
    # A mask that is learned: what broadcast is summed up again, before it is rounded.
    by_masked = _gradients(by_shares, shares, 1.0, ctx.causal, True)
    shape, dtype = ctx.mask
    return (by_masked * ctx.scale).to(shares.dtype), by_masked.sum_to_size(shape).to(dtype), None, None


_softmax.register_autograd(_backward, setup_context=_keep)
_shared = differentiable(_softmax, _normalise, _keep, _backward)


def _gradient_output(shares: torch.Tensor, wide: bool) -> torch.Tensor:
    return buffer_like(shares, compute_dtype(shares.dtype) if wide else None)


def _later(scores: torch.Tensor) -> torch.Tensor:
    """The causal mask: True where a column lies after its row."""
    return scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1)
