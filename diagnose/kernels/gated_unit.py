"""SwiGLU and GeGLU: `activation(gate) * up` in one pass each way; the backward pass needs nothing but the inputs.

Eager code writes activation(gate), reads it again, and keeps it until the backward pass. Gate and up may be the halves
of one projection: rows are read as they lie. Arithmetic is in float32 (float64 for float64), rounded once. Sizes at
which torch's own two operators are the faster ones take those.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.launch.tuning import fused_pays
from diagnose.kernels.layout import as_rows, buffer_like

Approximate = Literal["none", "tanh"]
"""The error function itself, or the formula with tanh: `torch.nn.functional.gelu` calls them so."""
_Activation = Literal["silu", "gelu", "gelu_tanh"]
_Unit = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, element by element, of one shape."""
    return _faster("swiglu", gate, up, _direct_swiglu, _native_swiglu)


def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate = "none") -> torch.Tensor:
    """`gelu(gate, approximate) * up`, element by element, of one shape."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate={approximate!r}: gelu has `none` and `tanh`")
    fused, native = partial(_fused_geglu, approximate=approximate), partial(_native_geglu, approximate=approximate)
    return _faster("geglu" if approximate == "none" else "geglu by tanh", gate, up, fused, native)


def _faster(name: str, gate: torch.Tensor, up: torch.Tensor, fused: _Unit, native: _Unit) -> torch.Tensor:
    """The unit by the fused operator, or by torch's own where those are faster or the fused one cannot."""
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape, not {tuple(gate.shape)} and {tuple(up.shape)}")
    if gate.dim() == 0:
        return _faster(name, gate.reshape(1), up.reshape(1), fused, native).reshape(())
    if left_to_torch(gate, up) or (gate.dtype == up.dtype and not fused_pays(name, (gate, up), fused, native)):
        return native(gate, up)
    return fused(gate, up)


def _native_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def _native_geglu(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate) -> torch.Tensor:
    return functional.gelu(gate, approximate=approximate) * up


def _fused_geglu(gate: torch.Tensor, up: torch.Tensor, approximate: Approximate) -> torch.Tensor:
    out: torch.Tensor = _direct_geglu(gate, up, approximate == "tanh")
    return out


def _activate(gate: torch.Tensor, up: torch.Tensor, activation: _Activation) -> torch.Tensor:
    out = _output_buffer(gate, up)
    dtype = compute_dtype(out.dtype)
    if out.numel() == 0:
        return out
    if runs_triton(gate):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import gated_unit

        gate, up = as_rows(gate, up)
        gated_unit.activate(gate, up, out, dtype, activation)
        return out
    wide = gate.to(dtype)
    activated = (
        functional.silu(wide) if activation == "silu" else functional.gelu(wide, approximate=_formula(activation))
    )
    return out.copy_(activated * up.to(dtype))


def _differentiate(
    by_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: _Activation
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by gate and up."""
    by_gate, by_up = _gradient_buffers(gate, up)
    dtype = compute_dtype(torch.promote_types(gate.dtype, up.dtype))
    if gate.numel() == 0:
        return by_gate, by_up
    if runs_triton(gate):
        from diagnose.kernels.gpu import gated_unit

        by_out, gate, up = as_rows(by_out, gate, up)
        gated_unit.gradients(by_out, gate, up, by_gate, by_up, dtype, activation)
        return by_gate, by_up
    given, wide = by_out.to(dtype), gate.to(dtype)
    if activation == "silu":
        share = torch.sigmoid(wide)
        by_up.copy_(given * wide * share)
        by_gate.copy_(given * up.to(dtype) * share * (1.0 + wide * (1.0 - share)))
    else:
        formula = _formula(activation)
        by_up.copy_(given * functional.gelu(wide, approximate=formula))
        by_gate.copy_(torch.ops.aten.gelu_backward(given * up.to(dtype), wide, approximate=formula))
    return by_gate, by_up


def _formula(activation: _Activation) -> Approximate:
    return "tanh" if activation == "gelu_tanh" else "none"


def _output_buffer(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """A contiguous buffer for the output, in the wider of the two types."""
    return buffer_like(gate, None if gate.dtype == up.dtype else torch.promote_types(gate.dtype, up.dtype))


def _gradient_buffers(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous, whatever the layouts of the inputs."""
    return buffer_like(gate), buffer_like(up)


def _activate_silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _activate(gate, up, "silu")


def _differentiate_silu(
    by_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _differentiate(by_out, gate, up, "silu")


def _keep_silu(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001 torch's
    ctx.save_for_backward(*inputs)


def _backward_silu(ctx: Any, by_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gradients: tuple[torch.Tensor, torch.Tensor] = _silu_gradients(by_out, *ctx.saved_tensors)
    return gradients


_swiglu = torch.library.custom_op("diagnose::swiglu", _activate_silu, mutates_args=())
_swiglu.register_fake(_output_buffer)
_swiglu_backward = torch.library.custom_op("diagnose::swiglu_backward", _differentiate_silu, mutates_args=())
_swiglu_backward.register_fake(lambda _, gate, up: _gradient_buffers(gate, up))
_silu_gradients = direct(_swiglu_backward, _differentiate_silu, "torch.nn.functional.silu(gate) * up")
_swiglu.register_autograd(_backward_silu, setup_context=_keep_silu)
_direct_swiglu = differentiable(_swiglu, _activate_silu, _keep_silu, _backward_silu)


def _activate_gelu(gate: torch.Tensor, up: torch.Tensor, by_tanh: bool) -> torch.Tensor:
    return _activate(gate, up, "gelu_tanh" if by_tanh else "gelu")


def _differentiate_gelu(
    by_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, by_tanh: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _differentiate(by_out, gate, up, "gelu_tanh" if by_tanh else "gelu")


def _keep_gelu(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor, bool], output: torch.Tensor) -> None:  # noqa: ARG001 torch's
    gate, up, ctx.by_tanh = inputs
    ctx.save_for_backward(gate, up)


def _backward_gelu(ctx: Any, by_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    by_gate, by_up = _gelu_gradients(by_out, *ctx.saved_tensors, ctx.by_tanh)
    return by_gate, by_up, None


_geglu = torch.library.custom_op("diagnose::geglu", _activate_gelu, mutates_args=())
_geglu.register_fake(lambda gate, up, _: _output_buffer(gate, up))
_geglu_backward = torch.library.custom_op("diagnose::geglu_backward", _differentiate_gelu, mutates_args=())
_geglu_backward.register_fake(lambda _, gate, up, __: _gradient_buffers(gate, up))
_gelu_gradients = direct(_geglu_backward, _differentiate_gelu, "torch.nn.functional.gelu(gate) * up")
_geglu.register_autograd(_backward_gelu, setup_context=_keep_gelu)
_direct_geglu = differentiable(_geglu, _activate_gelu, _keep_gelu, _backward_gelu)
