"""Root-mean-square and layer norms of rows, as torch's own calls and as programs write them out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from diagnose.graph.nodes import (
    before_casts,
    calls,
    dtype,
    equal_sizes,
    factors,
    fake_value,
    number,
    only_read_by,
    operand,
    shape,
)
from diagnose.graph.site import Site


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension: what it is taken of, and the nodes it consists of, the result last."""

    kind: Literal["rms", "layer"]
    value: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float
    round_before_weight: bool
    nodes: tuple[fx.Node, ...]


def norm_ending_in(node: fx.Node) -> Norm | None:
    """The norm whose result a node gives."""
    if calls(node, "rms_norm", "layer_norm"):
        return _native(node)
    return _written_out(node)


def _native(node: fx.Node) -> Norm | None:
    kind: Literal["rms", "layer"] = "rms" if calls(node, "rms_norm") else "layer"
    value, weight = operand(node, 0, "input"), operand(node, 2, "weight")
    bias = operand(node, 3, "bias") if kind == "layer" else None
    given = operand(node, 4, "eps", 1e-5) if kind == "layer" else operand(node, 3, "eps")
    sizes = operand(node, 1, "normalized_shape")
    over, rows = (tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)), fake_value(value)
    if rows is None or not equal_sizes(over, rows.shape[-1:]) or not rows.is_floating_point():
        return None
    eps = _default_eps(value) if given is None else number(given)
    if eps is None:
        return None
    return Norm(kind, value, weight, bias, eps, False, (node,))


def _default_eps(value: fx.Node) -> float | None:
    """Return the default eps of torch's rms_norm: the machine epsilon of the dtype that it computes in."""
    found = dtype(value)
    return None if found is None else torch.finfo(torch.float32 if found.itemsize < 4 else found).eps


def _written_out(node: fx.Node) -> Norm | None:
    """`weight * (x * rsqrt(mean(x²) + eps))` with the casts that programs put around its parts.

    Without a weight, the norm ends in a cast or in the product itself; a product with a weight that follows belongs to
    it, so that what ends in such a product is looked at first by those who walk the graph backwards.
    """
    last, outer = before_casts(node)
    for factor, normed in factors(last, "mul"):
        weight, weight_casts = before_casts(factor)
        inside, inner = before_casts(normed)
        found = _scaled(inside)
        if found is None or not isinstance(weight, fx.Node) or not equal_sizes(shape(weight), shape(found[0])[-1:]):
            continue
        value, eps, nodes = found
        after = (*reversed(inner), *reversed(weight_casts), last, *reversed(outer))
        return Norm("rms", value, weight, None, eps, _narrow(normed), (*nodes, *after))
    found = _scaled(last)
    if found is None:
        return None
    value, eps, nodes = found
    return Norm("rms", value, None, None, eps, False, (*nodes, *reversed(outer)))


def _narrow(node: fx.Node) -> bool:
    """Whether what a weight multiplies has been rounded to a half before."""
    found = dtype(node)
    return found is not None and found.itemsize < 4


def _scaled(node: object) -> tuple[fx.Node, float, tuple[fx.Node, ...]] | None:
    """Find `x * rsqrt(mean(x²) + eps)`: x before it was widened, eps, and the nodes."""
    for wide, scale in factors(node, "mul"):
        if not isinstance(wide, fx.Node) or not isinstance(node, fx.Node):
            continue
        found = _scale(wide, scale, node)
        if found is None:
            continue
        eps, nodes = found
        value, casts = before_casts(wide)
        inside = {node, *nodes, *casts}
        if not all(only_read_by(cast, inside) for cast in casts):
            value, casts = wide, ()
        if isinstance(value, fx.Node) and equal_sizes(shape(value), shape(node)):
            return value, eps, (*reversed(casts), *nodes, node)
    return None


def _scale(wide: fx.Node, scale: object, reader: fx.Node) -> tuple[float, tuple[fx.Node, ...]] | None:
    """eps and the nodes of `rsqrt(mean(wide²) + eps)` over the last dimension, where only `reader` reads it."""
    if not calls(scale, "rsqrt") or not isinstance(scale, fx.Node) or not only_read_by(scale, (reader,)):
        return None
    total = operand(scale, 0, "input")
    for mean, added in factors(total, "add"):
        eps = number(added)
        if eps is None or not calls(mean, "mean") or not _over_last(mean):
            continue
        square = operand(mean, 0, "input")
        if _is_square(square, wide) and only_read_by(square, (mean,)) and only_read_by(mean, (total,)):
            return (eps, (square, mean, total, scale)) if only_read_by(total, (scale,)) else None
    return None


def _over_last(mean: fx.Node) -> bool:
    along, rank = operand(mean, 1, "dim"), len(shape(operand(mean, 0, "input")))
    if isinstance(along, tuple | list) and len(along) == 1:
        along = along[0]
    kept = operand(mean, 2, "keepdim", False)
    return along in (-1, rank - 1) and kept is True and operand(mean, 3, "dtype") is None


def _is_square(node: Any, value: fx.Node) -> bool:
    if calls(node, "pow"):
        return bool(operand(node, 0, "input") is value and operand(node, 1, "exponent") == 2)
    if calls(node, "square"):
        return bool(operand(node, 0, "input") is value)
    return bool(calls(node, "mul") and node.args == (value, value))


def norms_of_sums(graph: fx.Graph, kind: str) -> Iterator[Norm]:
    """Norms of a sum of two tensors of one shape; backwards, so that the longest reading of a norm comes first."""
    taken: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        norm = None if node in taken else norm_ending_in(node)
        if norm is not None and norm.kind == kind and _adds(norm.value):
            taken.update(norm.nodes)
            yield norm


def site_of(pattern: str, norm: Norm, fused: Callable[..., Any], constants: Mapping[str, Any]) -> Site:
    """The site of a sum and its norm; the sum is an output too."""
    total, last = norm.value, norm.nodes[-1]
    parameters = tuple(part for part in (norm.weight, norm.bias) if isinstance(part, fx.Node))
    return Site(
        pattern,
        removed=(total, *norm.nodes),
        inputs=(*(part for part in total.args if isinstance(part, fx.Node)), *parameters),
        outputs=(last, total),
        fused=fused,
        constants={**constants, "normed_dtype": dtype(last)},
        rows=(0, 1),
    )


def _adds(node: fx.Node) -> bool:
    if not calls(node, "add") or len(node.args) != 2 or node.kwargs or not shape(node):
        return False
    return all(isinstance(part, fx.Node) and equal_sizes(shape(part), shape(node)) for part in node.args)
