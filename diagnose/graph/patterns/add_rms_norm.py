"""A residual addition and the norm of its sum, one after the other in a block; the sum is read by others too."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.nodes import alike, calls, dtype, only_read_by, shape
from diagnose.graph.norms import Norm, norm_ending_in
from diagnose.graph.site import FUSED_BY_COMPILER, Example, Inner, Pattern, Site, floats

LEAST_ELEMENTS = 1 << 23
"""Below this, the call of an operator written in Python costs more time than its memory traffic saves."""


def fused(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    eps: float,
    round_before_weight: bool,
    normed_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised sum and the sum."""
    normed, summed = kernels.add_rms_norm(x, residual, weight, eps, round_before_weight=round_before_weight)
    return normed.to(normed_dtype), summed


def find(graph: fx.Graph) -> Iterator[Site]:
    """Norms of a sum of two tensors of one shape; the longest reading of a norm first."""
    taken: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        norm = None if node in taken else norm_ending_in(node)
        site = None if norm is None or norm.kind != "rms" else _site(norm)
        if norm is not None and site is not None:
            taken.update(norm.nodes)
            yield site


def _site(norm: Norm) -> Site | None:
    total, normed_dtype = norm.value, dtype(norm.nodes[-1])
    if not calls(total, "add") or len(total.args) != 2 or total.kwargs or normed_dtype is None:
        return None
    x, residual = total.args
    if not isinstance(x, fx.Node) or not isinstance(residual, fx.Node) or not shape(x):
        return None
    if not alike(shape(x), shape(residual)) or not alike(shape(x), shape(total)):
        return None
    inside = set(norm.nodes)
    if not all(only_read_by(node, inside) for node in norm.nodes[:-1]):
        return None
    inputs = (x, residual) + (() if norm.weight is None else (norm.weight,))
    constants: dict[str, Any] = {"eps": norm.eps, "normed_dtype": normed_dtype}
    constants["round_before_weight"] = norm.round_before_weight
    return Site(PATTERN.name, (total, *norm.nodes), inputs, (norm.nodes[-1], total), fused, constants, rows=(0, 1))


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """What a norm that is written out keeps in float32 beside the sum; torch's own keeps no more than the operator."""
    written_out = len(site.removed) > 2
    return inputs[0].numel() * 8 if written_out and inner == "eager" else 0


def keeps(site: Site, inputs: list[torch.Tensor], inner: Inner) -> str:  # noqa: ARG001 the same for all patterns
    """A compiler fuses it with its neighbours; eager code gains a pass over memory each way, or many."""
    if inner == "compiled":
        return FUSED_BY_COMPILER
    return "" if inputs[0].numel() >= LEAST_ELEMENTS else "too small to pay for another launch"


def _native(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return functional.rms_norm(total, (8,), weight, 1e-5), total


def _as_llama(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = residual + x
    wide = total.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(total.dtype), total


def _weighted_before_the_cast(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = x + residual
    wide = total.float()
    return (wide * torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + 1e-6) * weight.float()).to(total.dtype)


def _without_weight(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x + residual, (8,), eps=1e-6)


def _norm_alone(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (8,), weight, 1e-5)


def _of_a_product(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x * residual, (8,), weight, 1e-5)


def _broadcast(x: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x + bias, (8,), weight, 1e-5)


def _over_two_dimensions(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x + residual, (6, 8), weight, 1e-5)


def _scale_read_twice(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * (total * scale), scale


def _other_dimension(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = x + residual
    return weight * (total * torch.rsqrt(total.pow(2).mean(-2, keepdim=True) + 1e-6))


def _cubes(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = x + residual
    return weight * (total * torch.rsqrt(total.abs().pow(3).mean(-1, keepdim=True) + 1e-6))


_THREE = (floats(2, 6, 8), floats(2, 6, 8), floats(8))
_HALVES = tuple(floats(*sizes, dtype=torch.bfloat16) for sizes in ((2, 6, 8), (2, 6, 8), (8,)))

PATTERN = Pattern(
    "add-rms-norm",
    find,
    saves,
    keeps,
    matches=(
        Example(_native, _THREE),
        Example(_as_llama, _THREE),
        Example(_as_llama, _HALVES),
        Example(_weighted_before_the_cast, _HALVES),
        Example(_without_weight, _THREE[:2]),
    ),
    leaves=(
        Example(_norm_alone, (floats(6, 8), floats(8))),
        Example(_of_a_product, _THREE),
        Example(_broadcast, (floats(6, 8), floats(8), floats(8))),
        Example(_over_two_dimensions, (floats(2, 6, 8), floats(2, 6, 8), floats(6, 8))),
        Example(_scale_read_twice, _THREE),
        Example(_other_dimension, _THREE),
        Example(_cubes, _THREE),
    ),
)
