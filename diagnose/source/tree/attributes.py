"""What the class around a piece of code keeps under `self.name`: its one binding, or the buffer registered for it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.tree.syntax import Source

__all__ = ["class_of", "member", "members_named"]


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
    found: list[cst.BaseExpression] = []
    for node in source.walk(around.body):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                found += [value for each, value in _pairs(target.target, node.value) if _is_self(each, name)]
        elif isinstance(node, cst.AnnAssign | cst.AugAssign):
            if _is_self(node.target, name) and node.value is not None:
                found.append(node.value)
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            registers = node.func.attr.value in {"register_buffer", "register_parameter"}
            first = node.args[0].value if registers and len(node.args) > 1 else None
            if isinstance(first, cst.SimpleString) and first.evaluated_value == name:
                found.append(node.args[1].value)
    return found


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


def _is_self(target: cst.BaseExpression, name: str) -> bool:
    return (
        isinstance(target, cst.Attribute)
        and target.attr.value == name
        and isinstance(target.value, cst.Name)
        and target.value.value == "self"
    )
