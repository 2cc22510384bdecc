"""Softmax of scores that are scaled and masked in passes of their own, as attention that is written out has them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from diagnose import kernels
from diagnose.graph.nodes import (
    calls,
    dtype,
    equal_sizes,
    factors,
    fake_value,
    is_cast,
    number,
    only_read_by,
    operand,
    shape,
    wanted_gradient,
)
from diagnose.graph.site import Example, Inner, Pattern, Site, flags, floats, left_to_compilers

LEAST_FORBIDDEN = -1e4
"""A filling as low as this forbids: its share is 0 in every dtype."""


@dataclass(frozen=True)
class MaskedScores:
    """Scores before they were masked, and how."""

    scores: fx.Node
    mask: fx.Node
    filling: float | None
    """The value where the mask is true; None where the mask is added."""
    allows: bool
    """Whether a boolean mask is true where scores stay."""
    node: fx.Node


def fused(
    scores: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float,
    filling: float | None,
    allows: bool,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The shares, in the dtype that they had."""
    wide = scores.to(torch.promote_types(scores.dtype, out_dtype))
    if mask is None or filling is None:
        return kernels.softmax(wide, mask, scale).to(out_dtype)
    allowed = mask if allows else ~mask
    shares = kernels.softmax(wide, allowed, scale)
    if filling > float("-inf"):
        # All of a row that is filled with one finite number has equal shares, and no gradient.
        shares = shares.masked_fill(~allowed.any(-1, keepdim=True), 1.0 / scores.shape[-1])
    return shares.to(out_dtype)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Softmaxes over the last dimension of what was scaled, masked, or both."""
    for node in graph.nodes:
        value = operand(node, 0, "input") if calls(node, "softmax") else None
        along = operand(node, 1, "dim") if value is not None else None
        if not isinstance(value, fx.Node) or not shape(value) or along not in (-1, len(shape(value)) - 1):
            continue
        removed = [node]
        masked = _masked_scores(value) if only_read_by(value, (node,)) else None
        if masked is not None:
            removed.append(value)
            value = masked.scores
        scale, before = _scaled(value, removed[-1])
        if before is not value:
            removed.append(value)
        last = _through_cast(node)
        out_dtype = dtype(last)
        if len(removed) == 1 or out_dtype is None or not _rows(before):
            continue
        yield Site(
            PATTERN.name,
            removed=(*reversed(removed), *(() if last is node else (last,))),
            inputs=(before,) if masked is None else (before, masked.mask),
            outputs=(last,),
            fused=fused,
            constants={
                "scale": scale,
                "filling": None if masked is None else masked.filling,
                "allows": masked is not None and masked.allows,
                "out_dtype": out_dtype,
            },
        )


def _masked_scores(node: fx.Node) -> MaskedScores | None:
    """Return scores and mask of a node that fills where a mask is true, chooses by one, or adds one; else None."""
    if calls(node, "masked_fill"):
        scores, mask, filling = (operand(node, place, name) for place, name in enumerate(("input", "mask", "value")))
        return _filled(scores, mask, filling, False, node)
    if calls(node, "where"):
        mask, scores, filling = (
            operand(node, place, name) for place, name in enumerate(("condition", "input", "other"))
        )
        return _filled(scores, mask, filling, True, node)
    for scores, mask in factors(node, "add"):
        if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node) or wanted_gradient(mask):
            continue
        known = fake_value(mask)
        if known is not None and known.is_floating_point() and equal_sizes(shape(scores), shape(node)):
            return MaskedScores(scores, mask, None, False, node)
    return None


def _filled(scores: object, mask: object, filling: object, allows: bool, node: fx.Node) -> MaskedScores | None:
    value = number(filling)
    if not isinstance(scores, fx.Node) or not isinstance(mask, fx.Node) or value is None or value > LEAST_FORBIDDEN:
        return None
    if dtype(mask) != torch.bool or not equal_sizes(shape(scores), shape(node)):
        return None
    return MaskedScores(scores, mask, value, allows, node)


def _scaled(node: fx.Node, reader: fx.Node) -> tuple[float, fx.Node]:
    """The constant that a node multiplies with, and what it multiplies; 1 and the node itself where it does not."""
    if not only_read_by(node, (reader,)) or node.kwargs:
        return 1.0, node
    for value, factor in factors(node, "mul"):
        scale = number(factor)
        if scale is not None and isinstance(value, fx.Node):
            return scale, value
    if calls(node, "truediv", "div") and len(node.args) == 2 and isinstance(node.args[0], fx.Node):
        divisor = number(node.args[1])
        if divisor:
            return 1.0 / divisor, node.args[0]
    return 1.0, node


def _through_cast(node: fx.Node) -> fx.Node:
    """The cast that alone reads a node, where there is one; else the node."""
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and is_cast(readers[0]) else node


def _rows(node: fx.Node) -> bool:
    value = fake_value(node)
    return value is not None and value.is_floating_point() and value.dim() >= 2


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """The scaled and the masked scores, of which eager code holds two at a time beside the shares."""
    if inner == "compiled":
        return 0
    passes = sum(1 for node in site.removed if not is_cast(node)) - 1
    saved: int = passes * inputs[0].numel() * inputs[0].dtype.itemsize
    return saved


def _as_nanogpt(q: torch.Tensor, k: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / 8**0.5)
    return torch.softmax(scores.masked_fill(forbidden, float("-inf")), dim=-1)


def _as_hugging_face(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.35 + mask.detach()
    return torch.nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)


def _chosen(q: torch.Tensor, k: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return torch.where(allowed, q @ k.transpose(-2, -1) / 2.5, -1e9).softmax(-1)


def _as_bert(q: torch.Tensor, k: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(padding, -1e4), dim=-1)


def _scaled_alone(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return ((q @ k.transpose(-2, -1)) / 8**0.5).softmax(dim=-1)


def _plain(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(-1)


def _other_dimension(scores: torch.Tensor) -> torch.Tensor:
    return (scores * 0.5).softmax(-2)


def _learned_bias(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (scores + bias).softmax(-1)


def _learned_temperature(scores: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    return (scores * temperature).softmax(-1)


def _scores_returned(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scaled = scores * 0.5
    return scaled.softmax(-1), scaled


def _mild_filling(scores: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(some, -1.0).softmax(-1)


def _log_softmax(scores: torch.Tensor) -> torch.Tensor:
    return (scores * 0.5).log_softmax(-1)


_HEADS = (floats(2, 3, 5, 8), floats(2, 3, 5, 8))
_HALVES = (floats(2, 3, 5, 8, dtype=torch.bfloat16), floats(2, 3, 5, 8, dtype=torch.bfloat16))
_SCORES = floats(2, 3, 5, 5)


def _causal(generator: torch.Generator) -> torch.Tensor:
    del generator
    return torch.ones(5, 5, dtype=torch.bool).triu(1)


def _diagonal(generator: torch.Generator) -> torch.Tensor:
    return flags(2, 1, 5, 5)(generator) | torch.eye(5, dtype=torch.bool)


def _nothing_left(generator: torch.Generator) -> torch.Tensor:
    return flags(2, 1, 5, 5)(generator) | (torch.arange(5) == 2)[:, None]


PATTERN = Pattern(
    "masked-softmax",
    find,
    saves,
    left_to_compilers,
    matches=(
        Example(_as_nanogpt, (*_HEADS, _causal)),
        Example(_as_hugging_face, (*_HALVES, floats(2, 1, 5, 5, dtype=torch.bfloat16))),
        Example(_chosen, (*_HEADS, _diagonal)),
        Example(_as_bert, (*_HEADS, _nothing_left)),
        Example(_scaled_alone, _HEADS),
    ),
    leaves=(
        Example(_plain, (_SCORES,)),
        Example(_other_dimension, (_SCORES,)),
        Example(_learned_bias, (_SCORES, floats(3, 5, 5))),
        Example(_learned_temperature, (_SCORES, floats(3, 1, 1))),
        Example(_scores_returned, (_SCORES,)),
        Example(_mild_filling, (_SCORES, flags(2, 3, 5, 5))),
        Example(_log_softmax, (_SCORES,)),
    ),
)
