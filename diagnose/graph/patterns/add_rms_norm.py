"""A residual addition and the norm of its sum, one after the other in a block; the sum is read by others too."""

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
    *,
    eps: float,
    round_before_weight: bool,
    normed_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised sum and the sum."""
    normed, summed = kernels.add_rms_norm(x, residual, weight, eps, round_before_weight=round_before_weight)
    return normed.to(normed_dtype), summed


def find(graph: fx.Graph) -> Iterator[Site]:
    """RMSNorms, torch's and written out, of a sum of two tensors of one shape."""
    for norm in norms_of_sums(graph, "rms"):
        constants = {"eps": norm.eps, "round_before_weight": norm.round_before_weight}
        yield site_of(PATTERN.name, norm, fused, constants)


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """Return the bytes saved: a norm that is written out keeps its input in float32 beside the sum; torch's own norm
    keeps no more than the operator.
    """
    written_out = len(site.removed) > 2
    return inputs[0].numel() * 8 if written_out and inner == "eager" else 0


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
    left_to_compilers,
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
