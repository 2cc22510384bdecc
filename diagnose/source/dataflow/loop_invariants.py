"""Tensors that a step makes anew although they are the same in every step."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.dataflow.flow import Loop, binds
from diagnose.source.dataflow.mutations import is_written
from diagnose.source.dataflow.reaching_definitions import names_in
from diagnose.source.tree.attributes import is_of_self
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_DRAWS = re.compile(r"rand|normal|bernoulli|multinomial|dropout|shuffle|permutation|choice|sample")
_SHAPED = frozenset({"ones", "zeros", "full", "eye"})
_FOLLOWS = frozenset({"tril", "triu", "view", "reshape", "unsqueeze", "expand", "bool", "long"})


def is_unchanging(source: Source, node: cst.BaseExpression, loop: Loop) -> bool:
    """Whether an expression has the same value in each turn of a loop: torch and NumPy on names that it never binds."""
    if _DRAWS.search(source.code(node)):
        return False
    for call in source.every(cst.Call, node):
        if not any(name.startswith(("torch.", "numpy.")) for name in source.names(call.func)):
            method = isinstance(call.func, cst.Attribute) and call_name(call) in {"to", "cuda", *_FOLLOWS}
            if not method:
                return False
    names = {name.value for name in names_in(source, node)}
    if any(binds(source, loop, name) or is_written(source, name, loop) for name in names):
        return False
    return all(each.attr.value == "device" for each in source.every(cst.Attribute, node) if is_of_self(each))


def on_device(source: Source, moved: cst.BaseExpression, device: str) -> str | None:
    """Code that makes `torch.tril(torch.ones(…))` and the like on a device at once; None for other expressions."""
    factories = [
        call
        for call in source.every(cst.Call, moved)
        if (call_name(call) in _SHAPED or _is_range(call))
        and any(name.startswith("torch.") for name in source.names(call.func))
    ]
    if len(factories) != 1 or any(arg.star for arg in factories[0].args):
        return None
    factory = factories[0]
    inside = set(source.every(cst.Call, factory))
    for call in source.every(cst.Call, moved):
        if call not in inside and call_name(call) not in _FOLLOWS:
            return None
    if any(arg.keyword is not None and arg.keyword.value in {"device", "pin_memory"} for arg in factory.args):
        return None
    if not factory.args:
        return None
    start, end = source.wide_span(moved)
    at = source.wide_span(factory.args[-1].value)[1]
    return f"{source.text[start:at]}, device={device}{source.text[at:end]}"


def _is_range(call: cst.Call) -> bool:
    """Whether a call is `torch.arange` of whole numbers, which each device counts alike."""
    return call_name(call) == "arange" and all(arg.keyword is None and _is_size(arg.value) for arg in call.args)


def _is_size(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Subscript):
        return isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"
    return isinstance(node, cst.Integer) or (isinstance(node, cst.Call) and call_name(node) in {"size", "len", "numel"})
