"""What a copy to the device moves: a tensor with a name of its own, a whole batch, the same tensor in every step."""

from __future__ import annotations

import libcst as cst

from diagnose.source.steps.transfers import Origin, Transfer
from diagnose.source.syntax import Source

__all__ = ["is_constant", "is_variable", "is_whole_batch"]


def is_variable(transfer: Transfer) -> bool:
    """Whether what is moved has a name of its own, and is not one value of many: `v` in `for k, v in t.items()`."""
    if not isinstance(transfer.moved, cst.Name):
        return False
    inner = (each for each in transfer.source.ancestors(transfer.moved) if isinstance(each, cst.BaseComp))
    targets = (name for each in inner for name in transfer.source.every(cst.Name, each.for_in.target))
    return all(name.value != transfer.moved.value for name in targets)


def is_whole_batch(transfer: Transfer) -> bool:
    """Whether what is moved is a dictionary or an object, whose `to` may take no `non_blocking`."""
    source, moved = transfer.source, transfer.moved
    if not isinstance(moved, cst.Name):
        return False
    for node in source.every(cst.Name):
        if node.value != moved.value:
            continue
        parent = source.parent(node)
        if isinstance(parent, cst.Arg) and parent.star == "**":
            return True
        keys = parent.slice if isinstance(parent, cst.Subscript) and parent.value is node else ()
        if any(isinstance(each, cst.SimpleString) for part in keys for each in source.walk(part)):
            return True
    return False


def is_constant(transfer: Transfer) -> bool:
    """Whether a tensor is the same in every step: it need not be copied at all."""
    made = transfer.made_by
    if transfer.origin is Origin.KEPT or made is None:
        return False
    names = {name.value for name in transfer.source.every(cst.Name, made)}
    return isinstance(made, cst.Call) and not names - {"torch", "np", "numpy", *_called(transfer.source, made)}


def _called(source: Source, node: cst.CSTNode) -> set[str]:
    attributes = {each.attr.value for each in source.every(cst.Attribute, node)}
    keywords = {each.keyword.value for each in source.every(cst.Arg, node) if each.keyword is not None}
    return attributes | keywords
