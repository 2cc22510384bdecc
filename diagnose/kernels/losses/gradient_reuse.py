"""Hands on a gradient that the forward pass left behind, times the gradient of the loss, without a copy where it may.

A gradient of the size of a vocabulary is worth not copying. Where the graph is not kept, what is saved in it is freed
right after the backward formula: it may be written over, as torch does with the buffers of compiled graphs, and then
becomes the parameter's `.grad` itself. Where the graph is kept, a second backward pass will read it: it is copied.
"""

from __future__ import annotations

import torch

from diagnose.kernels.backend import compute_dtype, runs_triton
from diagnose.kernels.fallbacks import has_tangent

BLOCK_ELEMENTS = 1 << 24
"""Elements that plain torch widens at once."""


def graph_is_kept() -> bool:
    """Whether the running backward pass keeps its graph for another; yes where torch cannot tell."""
    asked = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if asked is None else bool(asked())


def scale_gradient(gradient: torch.Tensor, factor: torch.Tensor, *, overwrite: bool) -> torch.Tensor:
    """The gradient times a number on its device, multiplied in float32 at least and rounded once."""
    dtype = compute_dtype(gradient.dtype)
    if not _is_memory(gradient, factor):
        return (gradient.to(dtype) * factor.to(dtype)).to(gradient.dtype)
    out = gradient if overwrite else torch.empty_like(gradient)
    factor = factor.to(dtype)
    if gradient.numel() == 0:
        return out
    if runs_triton(gradient) and gradient.is_contiguous():
        # Deferred: imports Triton, which need not be there.
        from diagnose.kernels.gpu import scaling

        scaling.scale(gradient, factor, out)
        return out
    step = max(1, BLOCK_ELEMENTS * len(gradient) // gradient.numel())
    for first in range(0, len(gradient), step):
        out[first : first + step] = gradient[first : first + step].to(dtype) * factor
    return out


def _is_memory(*tensors: torch.Tensor) -> bool:
    """Whether these are values alone: not what stands for them while torch traces or for a whole batch, no tangents."""
    return all(
        type(tensor) is torch.Tensor
        and not torch._C._functorch.is_legacy_batchedtensor(tensor)
        and not has_tangent(tensor)
        for tensor in tensors
    )
