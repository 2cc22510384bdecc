"""GeGLU: `gelu(gate) * up` in one pass each way, with nothing kept for the backward pass but its two inputs.

Eager code writes gelu(gate), reads it again, and keeps it until the backward pass. Gate and up may be the halves of one
projection: rows are read as they lie. Arithmetic is in float32 (float64 for float64), rounded once. Sizes at which
torch's own two operators are the faster ones take those.
"""

from functools import partial
from typing import Any, Literal

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.gated_unit import gradient_buffers, output_buffer
from diagnose.kernels.launch.tuning import fused_pays
from diagnose.kernels.layout import as_rows

Approximate = Literal["none", "tanh"]
"""The error function itself, or the formula with tanh: `torch.nn.functional.gelu` calls them so."""


def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate = "none") -> torch.Tensor:
    """`gelu(gate, approximate) * up`, element by element, of one shape."""
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape, not {tuple(gate.shape)} and {tuple(up.shape)}")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate={approximate!r}: gelu has `none` and `tanh`")
    if gate.dim() == 0:
        return geglu(gate.reshape(1), up.reshape(1), approximate).reshape(())
    fused, native = partial(_fused, approximate=approximate), partial(_native, approximate=approximate)
    name = "geglu" if approximate == "none" else "geglu by tanh"
    if left_to_torch(gate, up) or (gate.dtype == up.dtype and not fused_pays(name, (gate, up), fused, native)):
        return native(gate, up)
    return fused(gate, up)


def _fused(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate) -> torch.Tensor:
    out: torch.Tensor = _gated(gate, up, approximate == "tanh")
    return out


def _native(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate) -> torch.Tensor:
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def _activate(gate: torch.Tensor, up: torch.Tensor, by_tanh: bool) -> torch.Tensor:
    out = output_buffer(gate, up)
    dtype = compute_dtype(out.dtype)
    if out.numel() == 0:
        return out
    if runs_triton(gate):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import gated_unit

        gate, up = as_rows(gate, up)
        gated_unit.activate(gate, up, out, dtype, "gelu_tanh" if by_tanh else "gelu")
        return out
    name = "tanh" if by_tanh else "none"
    return out.copy_(torch.nn.functional.gelu(gate.to(dtype), approximate=name) * up.to(dtype))


_geglu = torch.library.custom_op("diagnose::geglu", _activate, mutates_args=())


@_geglu.register_fake
def _(gate: torch.Tensor, up: torch.Tensor, _: bool) -> torch.Tensor:
    return output_buffer(gate, up)


def _differentiate(
    by_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, by_tanh: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by gate and up."""
    by_gate, by_up = gradient_buffers(gate, up)
    dtype = compute_dtype(torch.promote_types(gate.dtype, up.dtype))
    if gate.numel() == 0:
        return by_gate, by_up
    if runs_triton(gate):
        from diagnose.kernels.gpu import gated_unit

        by_out, gate, up = as_rows(by_out, gate, up)
        gated_unit.gradients(by_out, gate, up, by_gate, by_up, dtype, "gelu_tanh" if by_tanh else "gelu")
        return by_gate, by_up
    given, wide, name = by_out.to(dtype), gate.to(dtype), "tanh" if by_tanh else "none"
    by_up.copy_(given * torch.nn.functional.gelu(wide, approximate=name))
    by_gate.copy_(torch.ops.aten.gelu_backward(given * up.to(dtype), wide, approximate=name))
    return by_gate, by_up


_geglu_backward = torch.library.custom_op("diagnose::geglu_backward", _differentiate, mutates_args=())
_gradients = direct(_geglu_backward, _differentiate, "torch.nn.functional.gelu(gate) * up")


@_geglu_backward.register_fake
def _(_: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, __: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return gradient_buffers(gate, up)


def _keep(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, bool], output: torch.Tensor) -> None:  # noqa: ARG001 torch's
    gate, up, ctx.by_tanh = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, by_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    by_gate, by_up = _gradients(by_out, *ctx.saved_tensors, ctx.by_tanh)
    return by_gate, by_up, None


_geglu.register_autograd(_backward, setup_context=_keep)
_gated = differentiable(_geglu, _activate, _keep, _backward)
