"""Rotary embedding of queries and keys in one pass: each is read once and written once, whatever their layouts.

Eager code cuts both in halves, negates, concatenates, multiplies twice and adds, each step through memory, and keeps
parts of that for the backward pass. A rotation is linear: its gradient is the rotation back, and nothing but cos and
sin is kept. Arithmetic is in float32 (float64 for float64), rounded once to the dtypes of queries and keys.
"""

from typing import Any

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.direct import differentiable
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.layout import with_unit_stride


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(q·cos + turned(q)·sin, k·cos + turned(k)·sin)`, in the dtypes and layouts of q and k.

    `turned(x)` is (−x₂, x₁) of the halves x₁ and x₂ of the last dimension, or of neighbours where `interleaved`. cos
    and sin broadcast against q and k, and have their last dimension, or half of it: one angle for both of a pair.
    Query heads and key heads may differ in number.
    """
    _check(q, k, cos, sin)
    learned = torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)
    if learned or left_to_torch(q, k, cos, sin) or (axis := _axis_of_heads(q, k, cos)) is None:
        return _reference(q, cos, sin, interleaved), _reference(k, cos, sin, interleaved)
    new_q, new_k = _rotated(*map(_of_four_dimensions, (q, k, cos, sin)), axis, interleaved, False)
    return (new_q, new_k) if q.dim() == 4 else (new_q.reshape(q.shape), new_k.reshape(k.shape))


def _rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: int, interleaved: bool, back: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by angles that broadcast against them, or back; all have four dimensions.

    Heads are along `axis`, 1 or 2, where cos and sin have one. Views are left to the kernel: made here, each would take
    the host as long as an operator, and made outside, as long again for autograd.
    """
    new_q, new_k = _output(q), _output(k)
    if runs_triton(q):
        if q.numel() or k.numel():
            # Deferred: imports Triton, which need not be there.
            from diagnose.kernels.gpu import rotary as in_triton

            in_triton.rotate(
                with_unit_stride(q), with_unit_stride(k), cos, sin, new_q, new_k, _sums(q, k), axis, interleaved, back
            )
        return new_q, new_k
    if back:
        sin = -_swapped(sin, interleaved) if sin.shape[-1] == q.shape[-1] else -sin
    new_q.copy_(_reference(q, cos, sin, interleaved))
    new_k.copy_(_reference(k, cos, sin, interleaved))
    return new_q, new_k


_rotary = torch.library.custom_op("diagnose::rotary", _rotate, mutates_args=())


@_rotary.register_fake
def _(q: torch.Tensor, k: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _output(q), _output(k)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:  # noqa: ARG001 torch's
    _, _, cos, sin, ctx.axis, ctx.interleaved, ctx.back = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, by_q: torch.Tensor, by_k: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    by_q, by_k = _rotated(by_q, by_k, *ctx.saved_tensors, ctx.axis, ctx.interleaved, not ctx.back)
    return by_q, by_k, None, None, None, None, None


_rotary.register_autograd(_backward, setup_context=_keep)
_rotated = differentiable(_rotary, _rotate, _keep, _backward)


def _output(x: torch.Tensor) -> torch.Tensor:
    """Allocate the output in the layout of x, as the unfused operators would leave it."""
    return torch.empty_like(x if x.stride(-1) == 1 else x.contiguous())


def _reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The formula in plain torch."""
    dtype = compute_dtype(x.dtype)
    wide, cos, sin = x.to(dtype), cos.to(dtype), sin.to(dtype)
    if cos.shape[-1] != x.shape[-1]:
        cos, sin = (
            part.repeat_interleave(2, -1) if interleaved else torch.cat((part, part), -1) for part in (cos, sin)
        )
    first, second = _pairs(wide, interleaved)
    return (wide * cos + _joined(-second, first, interleaved) * sin).to(x.dtype)


def _swapped(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    first, second = _pairs(x, interleaved)
    return _joined(second, first, interleaved)


def _pairs(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _joined(first: torch.Tensor, second: torch.Tensor, interleaved: bool) -> torch.Tensor:
    return torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)


def _axis_of_heads(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor) -> int | None:
    """The dimension of four that shares its angles, and is the only one in which q and k may differ."""
    if q.dim() > 4:
        return None
    shapes = [(1,) * (4 - part.dim()) + part.shape for part in (q, k, cos)]
    fitting = [
        axis
        for axis in (1, 2)
        if shapes[2][axis] == 1 and all(shapes[0][one] == shapes[1][one] for one in range(3) if one != axis)
    ]
    if len(fitting) == 2:  # no `max` by a key: where sizes are symbols, compilers do not know it
        return 1 if shapes[0][1] >= shapes[0][2] else 2
    return fitting[0] if fitting else None


def _of_four_dimensions(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 4 else tensor[(None,) * (4 - tensor.dim())]


def _sums(q: torch.Tensor, k: torch.Tensor) -> torch.dtype:
    return compute_dtype(torch.promote_types(q.dtype, k.dtype))


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    width = q.shape[-1] if q.dim() else 0
    if q.dim() != k.dim() or width % 2 or not width or k.shape[-1] != width:
        raise ValueError(f"queries {tuple(q.shape)} and keys {tuple(k.shape)} have one even width")
    if cos.shape != sin.shape or not 1 <= cos.dim() <= q.dim() or cos.shape[-1] not in (width, width // 2):
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} do not rotate {tuple(q.shape)}")
    for part in (q, k):
        sizes = zip(reversed(cos.shape[:-1]), reversed(part.shape[:-1]), strict=False)
        if any(angles not in (1, size) for angles, size in sizes):
            raise ValueError(f"cos {tuple(cos.shape)} does not broadcast against {tuple(part.shape)}")
