"""Rotary embedding of queries and keys by halves: `x·cos + cat(−x₂, x₁)·sin`, of both with the same angles."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from diagnose import kernels
from diagnose.graph.nodes import calls, dtype, equal_sizes, factors, only_read_by, operand, shape
from diagnose.graph.site import Example, Inner, Pattern, Site, floats, left_to_compilers


@dataclass(frozen=True)
class Rotation:
    """One tensor rotated: its nodes, the result last."""

    value: fx.Node
    cos: fx.Node
    sin: fx.Node
    nodes: tuple[fx.Node, ...]


def fused(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, out_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, rotated, in the dtype that wider angles gave them."""
    return kernels.rotary(q.to(out_dtype), k.to(out_dtype), cos, sin)


def find(graph: fx.Graph) -> Iterator[Site]:
    """Rotations that follow each other by the same angles, two at a time."""
    waiting: dict[tuple[fx.Node, fx.Node], Rotation] = {}
    for node in graph.nodes:
        rotation = _rotation(node)
        if rotation is None:
            continue
        angles = rotation.cos, rotation.sin
        first = waiting.pop(angles, None)
        if first is None or dtype(first.nodes[-1]) != dtype(node):
            waiting[angles] = rotation
            continue
        removed = (*first.nodes, *rotation.nodes)
        outputs = (first.nodes[-1], rotation.nodes[-1])
        constants = {"out_dtype": dtype(node)}
        yield Site(PATTERN.name, removed, (first.value, rotation.value, *angles), outputs, fused, constants)


def _rotation(node: fx.Node) -> Rotation | None:
    if not calls(node, "add") or len(shape(node)) not in (3, 4):
        return None
    for straight, across in factors(node, "add"):
        if not all(calls(part, "mul") and only_read_by(part, (node,)) for part in (straight, across)):
            continue
        for value, cos in factors(straight, "mul"):
            for turned, sin in factors(across, "mul"):
                nodes = _half_rotation(turned, value) if only_read_by_one(turned, across) else None
                if nodes is None or not isinstance(cos, fx.Node) or not isinstance(sin, fx.Node):
                    continue
                if equal_sizes(shape(value), shape(node)):
                    return Rotation(value, cos, sin, (straight, *nodes, across, node))
    return None


def only_read_by_one(node: object, reader: fx.Node) -> bool:
    """Whether a node is read by another alone."""
    return isinstance(node, fx.Node) and only_read_by(node, (reader,))


def _half_rotation(node: fx.Node, value: object) -> tuple[fx.Node, ...] | None:
    """The nodes of `cat((−second half, first half), −1)` of a value; None for anything else."""
    if not calls(node, "cat") or operand(node, 1, "dim") not in (-1, len(shape(node)) - 1):
        return None
    parts = operand(node, 0, "tensors")
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        return None
    negated, first = parts
    if not calls(negated, "neg") or not only_read_by_one(negated, node) or not only_read_by_one(first, node):
        return None
    second = operand(negated, 0, "input")
    halves = _halves(first, second, value)
    if halves is None or not only_read_by_one(second, negated):
        return None
    return (*halves, negated, node)


def _halves(first: object, second: object, value: object) -> tuple[fx.Node, ...] | None:
    """The nodes that cut a value in halves of its last dimension, by slices, `chunk` or `split`."""
    if not isinstance(first, fx.Node) or not isinstance(second, fx.Node) or not isinstance(value, fx.Node):
        return None
    width = shape(value)[-1] if shape(value) else None
    if not isinstance(width, int) or not calls(first, "getitem") or not calls(second, "getitem"):
        return None
    if first.args[0] is value and second.args[0] is value:
        cuts = tuple(_cut(node, width) for node in (first, second))
        return (first, second) if cuts == ((0, width // 2), (width // 2, width)) and width % 2 == 0 else None
    whole = first.args[0]
    if not isinstance(whole, fx.Node) or second.args[0] is not whole or (first.args[1], second.args[1]) != (0, 1):
        return None
    if (
        not calls(whole, "chunk", "split")
        or operand(whole, 0, "input") is not value
        or set(whole.users) != {first, second}
    ):
        return None
    size = 2 if calls(whole, "chunk") else width // 2
    along = operand(whole, 2, "dim", 0)
    if operand(whole, 1, "chunks") not in (size, (size, size), [size, size]) or width % 2:
        return None
    return (whole, first, second) if along in (-1, len(shape(value)) - 1) else None


def _cut(node: fx.Node, width: int) -> tuple[int, int] | None:
    """Return begin and end of a slice of the last dimension; None for any other node."""
    taken = node.args[1]
    if not isinstance(taken, tuple) or not taken or not isinstance(taken[-1], slice):
        return None
    last = taken[-1]
    bounds = (last.start, last.stop, last.step)
    if any(part is not Ellipsis and part != slice(None) for part in taken[:-1]):
        return None
    if Ellipsis not in taken[:-1] and len(taken) != len(shape(node)):
        return None
    if any(bound is not None and not isinstance(bound, int) for bound in bounds) or last.step not in (None, 1):
        return None
    begin, end, _ = last.indices(width)
    return begin, end


def saves(site: Site, inputs: list[torch.Tensor], inner: Inner) -> int:
    """The turned copies, which products with learned angles would keep; none does, and passes are what is gained."""
    del site, inputs, inner
    return 0


def _cut_in_halves(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def _chunked(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _as_llama(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)
    return (q * cos) + (_cut_in_halves(q) * sin), (k * cos) + (_cut_in_halves(k) * sin)


def _by_chunks(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)
    return q * cos + _chunked(q) * sin, sin * _chunked(k) + cos * k


def _other_sign(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((second, -first), dim=-1)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def _quarters(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., 2:], x[..., :2]), dim=-1)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def _of_each_other(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = cos.detach().unsqueeze(1), sin.detach().unsqueeze(1)
    return q * cos + _cut_in_halves(k) * sin, k * cos + _cut_in_halves(q) * sin


_HEADS = (floats(2, 3, 5, 8), floats(2, 3, 5, 8), floats(1, 5, 8), floats(1, 5, 8))
_GROUPED = (floats(2, 4, 5, 8), floats(2, 2, 5, 8), floats(1, 5, 8), floats(1, 5, 8))

PATTERN = Pattern(
    "rotary",
    find,
    saves,
    left_to_compilers,
    matches=(Example(_as_llama, _HEADS), Example(_as_llama, _GROUPED), Example(_by_chunks, _HEADS)),
    leaves=(Example(_other_sign, _HEADS), Example(_quarters, _HEADS), Example(_of_each_other, _HEADS)),
)
