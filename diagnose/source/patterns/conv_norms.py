"""Convolutions whose result goes straight into a batch normalisation, which takes any constant out again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from diagnose.source.patterns.formula import operation
from diagnose.source.rewrite.leftovers import nothing_else_reads
from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.attributes import members_named
from diagnose.source.tree.syntax import Source

__all__ = ["biased_before_norm"]

_KINDS = ("1d", "2d", "3d")


def biased_before_norm(source: Source) -> Iterator[cst.Call]:
    """The calls that build such convolutions with a bias, in the order of the text."""
    found: dict[int, cst.Call] = {}
    for call in source.every(cst.Call):
        for conv in (*_in_sequence(source, call), *_in_forward(source, call)):
            if _has_bias(source, conv):
                found[source.span(conv)[0]] = conv
    yield from (found[at] for at in sorted(found))


def _kind(source: Source, call: cst.BaseExpression, name: str) -> str | None:
    """`2d` for a call that builds `name` for images."""
    if not isinstance(call, cst.Call):
        return None
    built = {full.rpartition(".")[2] for full in source.names(call.func) if full.startswith("torch.nn.")}
    return next((kind for kind in _KINDS if f"{name}{kind}" in built), None)


def _in_sequence(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """`Sequential(Conv2d(…), BatchNorm2d(…))`, and lists of layers."""
    layers = [arg.value for arg in call.args]
    if len(layers) == 1 and isinstance(layers[0], cst.List):
        layers = [element.value for element in layers[0].elements]
    if len(layers) < 2 or not any(name == "torch.nn.Sequential" for name in source.names(call.func)):
        return
    for layer, after in pairwise(layers):
        if isinstance(layer, cst.Call) and _agree(source, layer, after):
            yield layer


def _in_forward(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """`self.norm(self.conv(x))`, also by way of a name, where the convolution has one use only."""
    if len(call.args) != 1:
        return
    norm, around = _member(source, call.func), source.inside(call, cst.ClassDef)
    if norm is None or around is None or _kind(source, norm, "BatchNorm") is None:
        return
    made = operation(source, call.args[0].value)
    if made is None or made.condition is not None or made.module is None or not isinstance(made.node, cst.Call):
        return
    name = source.code(made.node.func)
    called = sum(source.code(each.func) == name for each in source.every(cst.Call, around))
    if called == 1 and nothing_else_reads(source, call, made.through) and _agree(source, made.module, norm):
        yield made.module


def _member(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    around = source.inside(node, cst.ClassDef)
    if around is None or not isinstance(node, cst.Attribute) or source.code(node.value) != "self":
        return None
    found = members_named(source, around, node.attr.value)
    return found[0] if len(found) == 1 else None


def _agree(source: Source, conv: cst.Call, norm: cst.BaseExpression) -> bool:
    kind = _kind(source, conv, "Conv")
    if kind is None or _kind(source, norm, "BatchNorm") != kind or not isinstance(norm, cst.Call):
        return False
    # With fixed statistics from the start, a constant would stay.
    return argument(norm, "track_running_stats") is None and not has_star(conv)


def _has_bias(source: Source, conv: cst.Call) -> bool:
    given = argument(conv, "bias", 7)
    return given is None or source.code(given.value) == "True"
