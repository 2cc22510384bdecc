"""Tensors that a step makes anew although they are the same in every step."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.dataflow.flow import Loop, binds
from diagnose.source.dataflow.mutations import is_written
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
    for name in source.every(cst.Name, node):
        parent = source.parent(name)
        if isinstance(parent, cst.Attribute) and parent.attr is name:
            continue
        if isinstance(parent, cst.Arg) and parent.keyword is name:
            continue
        if binds(source, loop, name.value) or is_written(source, name.value, loop):
            return False
    return not any(
        isinstance(each, cst.Attribute) and isinstance(each.value, cst.Name) and each.value.value == "self"
        for each in source.walk(node)
    ) or all(each.attr.value == "device" for each in source.every(cst.Attribute, node) if _is_self(each))


def _is_self(node: cst.Attribute) -> bool:
    return isinstance(node.value, cst.Name) and node.value.value == "self"


def on_device(source: Source, moved: cst.BaseExpression, device: str) -> str | None:
    """Code that makes `torch.tril(torch.ones(…))` and the like on a device at once; None for other expressions."""
    factories = [
        call
        for call in source.every(cst.Call, moved)
        if call_name(call) in _SHAPED and any(name.startswith("torch.") for name in source.names(call.func))
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
