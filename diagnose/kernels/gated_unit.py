"""SwiGLU: `silu(gate) * up` in one pass each way, with nothing kept for the backward pass but its two inputs.

Eager code writes silu(gate), reads it again, and keeps it until the backward pass. Gate and up may be the halves of one
projection: rows are read as they lie. Arithmetic is in float32 (float64 for float64), rounded once. Sizes at which
torch's own two operators are the faster ones take those.
"""

from typing import Any

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.direct import differentiable, direct
from diagnose.kernels.fallbacks import left_to_torch
from diagnose.kernels.launch.tuning import fused_pays
from diagnose.kernels.layout import as_rows, buffer_like


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, element by element, of one shape."""
    if gate.shape != up.shape:
        raise ValueError(f"gate and up have one shape, not {tuple(gate.shape)} and {tuple(up.shape)}")
    if gate.dim() == 0:
        return swiglu(gate.reshape(1), up.reshape(1)).reshape(())
    if left_to_torch(gate, up) or (gate.dtype == up.dtype and not fused_pays("swiglu", (gate, up), _fused, _native)):
        return _native(gate, up)
    return _fused(gate, up)


def _fused(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _gated(gate, up)
    return out


def _native(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def _activate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = output_buffer(gate, up)
    dtype = compute_dtype(out.dtype)
    if out.numel() == 0:
        return out
    if runs_triton(gate):
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import gated_unit

        gate, up = as_rows(gate, up)
        gated_unit.activate(gate, up, out, dtype)
        return out
    return out.copy_(torch.nn.functional.silu(gate.to(dtype)) * up.to(dtype))


_swiglu = torch.library.custom_op("diagnose::swiglu", _activate, mutates_args=())


@_swiglu.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return output_buffer(gate, up)


def _differentiate(by_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients by gate and up."""
    by_gate, by_up = gradient_buffers(gate, up)
    dtype = compute_dtype(torch.promote_types(gate.dtype, up.dtype))
    if gate.numel() == 0:
        return by_gate, by_up
    if runs_triton(gate):
        from diagnose.kernels.gpu import gated_unit

        by_out, gate, up = as_rows(by_out, gate, up)
        gated_unit.gradients(by_out, gate, up, by_gate, by_up, dtype)
        return by_gate, by_up
    given, wide = by_out.to(dtype), gate.to(dtype)
    share = torch.sigmoid(wide)
    by_up.copy_(given * wide * share)
    by_gate.copy_(given * up.to(dtype) * share * (1.0 + wide * (1.0 - share)))
    return by_gate, by_up


_swiglu_backward = torch.library.custom_op("diagnose::swiglu_backward", _differentiate, mutates_args=())
_gradients = direct(_swiglu_backward, _differentiate, "torch.nn.functional.silu(gate) * up")


@_swiglu_backward.register_fake
def _(_: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return gradient_buffers(gate, up)


def _keep(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001 torch's
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, by_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gradients: tuple[torch.Tensor, torch.Tensor] = _gradients(by_out, *ctx.saved_tensors)
    return gradients


_swiglu.register_autograd(_backward, setup_context=_keep)
_gated = differentiable(_swiglu, _activate, _keep, _backward)


def output_buffer(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """A contiguous buffer for the output of a gated unit, in the wider of the two types."""
    return buffer_like(gate, None if gate.dtype == up.dtype else torch.promote_types(gate.dtype, up.dtype))


def gradient_buffers(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous, whatever the layouts of the inputs."""
    return buffer_like(gate), buffer_like(up)
