"""A residual addition and the LayerNorm of its sum, one after the other in a block; the sum is read by others too."""

from collections.abc import Iterator

import torch
from torch import fx
from torch.nn import functional

from diagnose import kernels
from diagnose.graph.patterns.norms import norms_of_sums, site_of
from diagnose.graph.site import Example, Inner, Pattern, Site, floats, left_to_compilers


def fused(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
    normed_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised sum and the sum."""
    normed, summed = kernels.add_layer_norm(x, residual, weight, bias, eps)
    return normed.to(normed_dtype), summed


def find(graph: fx.Graph) -> Iterator[Site]:
    """torch's LayerNorms of a sum of two tensors of one shape."""
    for norm in norms_of_sums(graph, "layer"):
        if norm.weight is not None or norm.bias is None:
            yield site_of(PATTERN.name, norm, fused, {"eps": norm.eps})


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:  # noqa: ARG001 as all patterns are called
    """Return 0: torch's own norm keeps no more for the backward pass; the gain is fewer passes over memory."""
    return 0


def _before_the_unit(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + branch
    return functional.layer_norm(x, (8,), weight, bias, 1e-5), x


def _after_the_unit(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(torch.add(x, branch), (8,), weight=weight, bias=bias)


def _without_bias(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x + branch, (8,), weight)


def _norm_alone(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, (8,), weight, bias)


def _scaled_sum(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(torch.add(x, branch, alpha=2.0), (8,), weight, bias)


def _positions(x: torch.Tensor, positions: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x + positions, (8,), weight, bias)


def _in_place(x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x * 1.0
    x += branch
    return functional.layer_norm(x, (8,), weight, bias)


_FOUR = (floats(2, 6, 8), floats(2, 6, 8), floats(8), floats(8))

PATTERN = Pattern(
    "add-layer-norm",
    find,
    saves,
    left_to_compilers,
    matches=(
        Example(_before_the_unit, _FOUR),
        Example(_after_the_unit, _FOUR),
        Example(_without_bias, _FOUR[:3]),
    ),
    leaves=(
        Example(_norm_alone, (floats(6, 8), floats(8), floats(8))),
        Example(_scaled_sum, _FOUR),
        Example(_positions, (floats(2, 6, 8), floats(6, 8), floats(8), floats(8))),
        Example(_in_place, _FOUR),
    ),
)
