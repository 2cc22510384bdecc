"""The size of a copy to the device: a tensor with a name of its own, a whole batch, the same tensor in every step."""

from __future__ import annotations

import libcst as cst

from diagnose.source.dataflow.flow import loops_around, scope_of
from diagnose.source.device.transfers import Origin, Transfer
from diagnose.source.training.every_step import counter_of
from diagnose.source.tree.attributes import binds_whole
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_VALUES = frozenset({"items", "values"})
_FEW = 16
"""Numbers whose copy takes no longer from ordinary memory than it takes to pin them."""
_ONE_NUMBER = frozenset({"float", "int", "len", "round", "time"})


def is_variable(transfer: Transfer) -> bool:
    """Whether what is moved has a name, and is no value of a dictionary: `v` in `for k, v in t.items()`."""
    if not isinstance(transfer.moved, cst.Name):
        return False
    inner = (each.for_in for each in transfer.source.ancestors(transfer.moved) if isinstance(each, cst.BaseComp))
    of_values = (each for each in inner if isinstance(each.iter, cst.Call) and call_name(each.iter) in _VALUES)
    targets = (name for each in of_values for name in transfer.source.every(cst.Name, each.target))
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


def is_small(transfer: Transfer) -> bool:
    """Whether a tensor has surely only a few numbers, which are written out: `torch.tensor(step / 100)`."""
    source, made = transfer.source, transfer.made_by
    if not isinstance(made, cst.Call) or call_name(made) != "tensor" or not made.args:
        return False
    given = made.args[0].value
    elements = given.elements if isinstance(given, cst.List | cst.Tuple) else ()
    if elements:
        few = len(elements) <= _FEW and not any(isinstance(each, cst.StarredElement) for each in elements)
        return few and all(_is_number(source, each.value) for each in elements)
    return _is_number(source, given)


def _is_number(source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is evidently one number: a literal, what counts turns, and what is computed of them."""
    if isinstance(node, cst.Integer | cst.Float):
        return True
    if isinstance(node, cst.UnaryOperation):
        return _is_number(source, node.expression)
    if isinstance(node, cst.BinaryOperation):
        return _is_number(source, node.left) and _is_number(source, node.right)
    if isinstance(node, cst.Call):
        plain = isinstance(node.func, cst.Name) and node.func.value in _ONE_NUMBER
        return plain or (isinstance(node.func, cst.Attribute) and node.func.attr.value == "item")
    if not isinstance(node, cst.Name):
        return False
    return any(counter_of(source, loop) == node.value for loop in loops_around(source, node)) or _adds_up(source, node)


def _adds_up(source: Source, name: cst.Name) -> bool:
    """Whether a variable begins as a number, and is only given numbers: `count = 0`, then `count += len(batch)`."""
    scope = scope_of(source, name)
    values = [each.value for each in source.every(cst.Assign, scope) if binds_whole(each, name.value)]
    return bool(values) and all(not isinstance(each, cst.Name) and _is_number(source, each) for each in values)


def _called(source: Source, node: cst.CSTNode) -> set[str]:
    attributes = {each.attr.value for each in source.every(cst.Attribute, node)}
    keywords = {each.keyword.value for each in source.every(cst.Arg, node) if each.keyword is not None}
    return attributes | keywords
