"""The value of `self.name` in the class around a piece of code: its one binding, or the buffer registered for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from diagnose.source.tree.literals import string
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source


def class_of(source: Source, node: cst.CSTNode) -> cst.ClassDef | None:
    """The class whose method a node lies in."""
    return source.inside(node, cst.ClassDef)


def member(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The expression that `self.name` was given, where the class gives it one only."""
    if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Name) or node.value.value != "self":
        return None
    around = class_of(source, node)
    found = members_named(source, around, node.attr.value) if around is not None else []
    return found[0] if len(found) == 1 else None


def members_named(source: Source, around: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
    """All that a class binds to `self.name`, or registers as its buffer, and the default in the class's body."""
    return list(_members(source, around).get(name, ()))


@per_source
def _members(source: Source, around: cst.ClassDef) -> Mapping[str, Sequence[cst.BaseExpression]]:
    """By name, in the order of the text."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in source.walk(around.body, cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Call):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                for each, value in _pairs(target.target, node.value):
                    if (own := _name_in_self(each)) is not None:
                        found.setdefault(own, []).append(value)
        elif isinstance(node, cst.AnnAssign | cst.AugAssign):
            if (own := _name_in_self(node.target)) is not None and node.value is not None:
                found.setdefault(own, []).append(node.value)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            registers = node.func.attr.value in {"register_buffer", "register_parameter"}
            first = node.args[0].value if registers and len(node.args) > 1 else None
            if isinstance(first, cst.SimpleString) and isinstance(first.evaluated_value, str):
                found.setdefault(first.evaluated_value, []).append(node.args[1].value)
    return found


def set_from_outside(source: Source, name: str) -> Iterator[cst.BaseExpression]:
    """What code gives an attribute of that name of anything but `self`: by `block.name = x`, `setattr(block, …)`."""
    for node in source.walk(None, cst.Assign, cst.AugAssign, cst.AnnAssign) if name in source.words else ():
        if isinstance(node, cst.Assign):
            pairs = [pair for target in node.targets for pair in _pairs(target.target, node.value)]
        elif isinstance(node, cst.AugAssign | cst.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, cst.Attribute) and target.attr.value == name and _name_in_self(target) is None:
                yield value
    for call in source.calls_named("setattr"):
        if len(call.args) == 3 and string(call.args[1].value) == name and source.code(call.args[0].value) != "self":
            yield call.args[2].value


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What an assignment gives to what, `self.a, self.b = x, y` taken apart."""
    if not isinstance(target, cst.Tuple | cst.List):
        yield target, value
        return
    values = value.elements if isinstance(value, cst.Tuple | cst.List) else ()
    alike = len(values) == len(target.elements)
    for at, element in enumerate(target.elements):
        # Without a value of its own, the whole stands for it: an expression that nobody takes for more than it is.
        yield element.value, values[at].value if alike else value


def _name_in_self(target: cst.BaseExpression) -> str | None:
    """`name` of `self.name`."""
    own = isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name) and target.value.value == "self"
    return target.attr.value if isinstance(target, cst.Attribute) and own else None
