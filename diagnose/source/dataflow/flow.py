"""Where a variable goes within its function: every binding, every read, and which reads each turn of a loop makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

Scope = cst.FunctionDef | cst.Module
Variable = cst.Name | cst.Attribute
"""A name, or an attribute of the object: `self.total`."""
STEADY_UPDATES = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)
"""`+=` and its like, which mean the same for a number and for a tensor that holds one."""
_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
Loop = cst.For | cst.While
_NO_GRADIENTS = re.compile(r"\b(?:no_grad|inference_mode)\b")
_NO_MODE = re.compile(r"__name__|is_available\(|\b(?:use_|no_)?cuda\b|\bdevice\b")


@dataclass(frozen=True)
class Uses:
    """All that happens to one name in one scope, in the order of the text."""

    assigned: tuple[tuple[Variable, cst.BaseExpression], ...]
    """`name = value`; also with an annotation, as one of `name, other = value, 0`, and of `name = other = 0`."""
    augmented: tuple[tuple[Variable, cst.AugAssign], ...]
    """`name += value` and its like."""
    reads: tuple[Variable, ...]
    lost: str | None
    """Why the name cannot be followed (`is used by another function`); None where everything is above."""


def scope_of(source: Source, node: cst.CSTNode) -> Scope:
    """The function that a node runs in, or the module."""
    return source.inside(node, cst.FunctionDef) or source.module


@per_source
def uses_of(source: Source, scope: Scope, name: str) -> Uses:
    """Follow a name through a scope."""
    assigned: list[tuple[Variable, cst.BaseExpression]] = []
    augmented: list[tuple[Variable, cst.AugAssign]] = []
    reads: list[Variable] = []
    lost: str | None = None
    for node in source.named(name, scope):
        if not is_variable(source, node):
            continue
        parent = source.parent(node)
        above = source.parent(parent) if parent is not None else None
        if _scope_within(source, node) is not scope:
            if _is_anothers(source, node, scope):
                continue
            lost = "is used by another function"
        elif isinstance(parent, cst.AssignTarget) and isinstance(above, cst.Assign) and _is_all_its_own(above):
            assigned.append((node, above.value))
        elif isinstance(parent, cst.AnnAssign) and parent.target is node and parent.value is not None:
            assigned.append((node, parent.value))
        elif (value := _in_row(source, node)) is not None:
            assigned.append((node, value))
        elif isinstance(parent, cst.AugAssign) and parent.target is node:
            augmented.append((node, parent))
        elif _is_bound_otherwise(source, node):
            lost = "is bound in a way that is not followed"
        else:
            reads.append(node)
    if isinstance(scope, cst.Module) and _is_exported(source, name):
        lost = "is exported"
    return Uses(tuple(assigned), tuple(augmented), tuple(reads), lost)


def _is_all_its_own(assign: cst.Assign) -> bool:
    """Whether a name shares what it gets with no other: it stands alone, or as in `correct = total = 0`."""
    return len(assign.targets) == 1 or isinstance(assign.value, cst.Integer | cst.Float)


def _in_row(source: Source, node: cst.Name) -> cst.BaseExpression | None:
    """Return what a name gets in `a, b = 0.0, None`; None where that is no constant, list or call, or the rest is
    unclear."""
    element = source.parent(node)
    row = source.parent(element) if isinstance(element, cst.Element) else None
    target = source.parent(row) if isinstance(row, cst.Tuple) else None
    assign = source.parent(target) if isinstance(target, cst.AssignTarget) else None
    if not isinstance(row, cst.Tuple) or not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    values = assign.value.elements if isinstance(assign.value, cst.Tuple) else ()
    if len(values) != len(row.elements) or any(
        isinstance(each, cst.StarredElement) for each in (*row.elements, *values)
    ):
        return None
    given = next(value.value for each, value in zip(row.elements, values, strict=True) if each is element)
    named = any(name.value == node.value for name in source.every(cst.Name, assign.value))
    return given if _is_start(given) and not named else None


def _is_start(node: cst.BaseExpression) -> bool:
    """Whether something is what a sum, a list or a meter begins with."""
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Name)
    if isinstance(node, cst.Integer | cst.Float):
        return True
    return isinstance(node, cst.List) and not node.elements


def _scope_within(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef | cst.Module):
            return above
    return source.module


def _is_anothers(source: Source, node: cst.Name, scope: Scope) -> bool:
    """Whether a name below a scope is a variable of a function in between: a parameter, or bound there."""
    for above in source.ancestors(node):
        if above is scope:
            return False
        if isinstance(above, cst.FunctionDef | cst.Lambda):
            if any(param.name.value == node.value for param in source.every(cst.Param, above.params)):
                return True
            outside = any(item.name.value == node.value for item in source.every(cst.NameItem, above))
            if isinstance(above, cst.FunctionDef) and not outside and binds(source, above.body, node.value):
                return True
    return False


def is_variable(source: Source, node: cst.Name) -> bool:
    """Whether a name is one, and not an attribute, a keyword of a call, or a parameter or class of its own."""
    parent = source.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.value is node
    if isinstance(parent, cst.Arg):
        return parent.keyword is not node
    return not isinstance(parent, cst.FunctionDef | cst.ClassDef)


def _is_bound_otherwise(source: Source, node: cst.Name) -> bool:
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, cst.Param | cst.NameItem | cst.Del | cst.ImportAlias | cst.AsName):
            return True
        if isinstance(above, cst.AssignTarget | cst.NamedExpr) and above.target is below:
            return not isinstance(below, cst.Subscript | cst.Attribute)
        if isinstance(above, cst.For | cst.CompFor) and above.target is below:
            return True
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        below = above
    return False


def _is_exported(source: Source, name: str) -> bool:
    """Whether another scope of the file declares the name `global`, or the file is meant to be imported for it."""
    return any(item.name.value == name for item in source.every(cst.NameItem))


def bindings(source: Source, below: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    """Yield where anything below a node gives the name another value."""
    for node in source.named(name, below):
        if is_variable(source, node):
            parent = source.parent(node)
            augmented = isinstance(parent, cst.AugAssign | cst.AnnAssign) and parent.target is node
            if augmented or isinstance(parent, cst.AssignTarget) or _is_bound_otherwise(source, node):
                yield node


@per_source
def binds(source: Source, below: cst.CSTNode, name: str) -> bool:
    """Whether anything below a node gives the name another value."""
    return next(bindings(source, below, name), None) is not None


def loops_around(source: Source, node: cst.CSTNode) -> list[Loop]:
    """The loops of its own function that a node runs in, innermost first."""
    loops: list[Loop] = []
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            break
        if isinstance(above, cst.For | cst.While):
            loops.append(above)
    return loops


def is_repeated(source: Source, node: cst.CSTNode) -> bool:
    """Whether a loop of its own function evaluates a node in each turn: not what a `for` goes through, nor `else`."""
    for loop in loops_around(source, node):
        once = (loop.iter if isinstance(loop, cst.For) else None, loop.orelse)
        if not any(part is not None and (node is part or within(source, node, part)) for part in once):
            return True
    return False


def gate(source: Source, node: cst.CSTNode, loop: Loop) -> cst.If | None:
    """The `if … % …:` within a loop that lets a node run in some turns only; None where it runs in every turn."""
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if above is loop:
            return None
        if isinstance(above, cst.If) and below is above.body and any(source.every(cst.Modulo, above.test)):
            return above
        below = above
    return None


def is_after(source: Source, node: cst.CSTNode, loop: Loop) -> bool:
    """Whether a node begins after a loop has ended."""
    return source.span(node)[0] >= source.span(loop)[1]


def within(source: Source, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a node is a part of another."""
    return any(above is outer for above in source.ancestors(node))


def is_without_gradients(source: Source, node: cst.CSTNode) -> bool:
    """Whether the innermost `with` block around a node that turns autograd on or off, or a decorator of its function,
    turns it off.
    """
    for above in source.ancestors(node):
        if isinstance(above, cst.With):
            items = " ".join(source.code(item) for item in above.items)
            if "enable_grad" in items or _NO_GRADIENTS.search(items):
                return "enable_grad" not in items
        if isinstance(above, cst.FunctionDef):
            return any(_NO_GRADIENTS.search(source.code(each)) for each in above.decorators)
    return False


def is_append(node: cst.CSTNode) -> bool:
    """Whether a node is `name.append(value)`, or `self.name.append(value)`."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "append"
        and isinstance(node.func.value, Variable)
        and len(node.args) == 1
    )


def updates(source: Source, node: cst.CSTNode) -> str | None:
    """The variable whose new value an expression is a part of, through plain arithmetic alone; else None."""
    below = node
    for above in source.ancestors(node):
        if isinstance(above, cst.Assign):
            target = above.targets[0].target
            return source.code(target) if isinstance(target, Variable) and len(above.targets) == 1 else None
        if isinstance(above, cst.AugAssign):
            steady = isinstance(above.operator, STEADY_UPDATES) and above.value is below
            return source.code(above.target) if isinstance(above.target, Variable) and steady else None
        if isinstance(above, cst.BinaryOperation):
            power = isinstance(above.operator, cst.Power) and isinstance(above.right, cst.Integer)
            if not power and not isinstance(above.operator, _ARITHMETIC):
                return None
        elif not isinstance(above, cst.UnaryOperation):
            return None
        below = above
    return None


def chosen_by(source: Source, node: cst.CSTNode) -> str | None:
    """The test of the `if` that decides whether a node of a scope runs, `not (…)` of its `else`; None without one.

    A main guard is none, nor is a question for the device: neither is a mode of the program's.
    """
    scope = scope_of(source, node)
    below = node
    for above in source.ancestors(node):
        if above is scope:
            return None
        if isinstance(above, cst.If) and below is not above.test:
            test = source.code(above.test)
            if _NO_MODE.search(test) is None:
                return test if below is above.body else f"not ({test})"
        below = above
    return None


def asks_nothing(source: Source, use: Variable) -> bool:
    """Whether a use asks nothing of the value: an append, a length, a comparison with None, its own update."""
    parent = source.parent(use)
    above = source.parent(parent) if parent is not None else None
    if isinstance(parent, cst.Attribute) and isinstance(above, cst.Call):
        return is_append(above) or parent.attr.value == "clear"
    if isinstance(parent, cst.Arg) and isinstance(above, cst.Call):
        return source.code(above.func) == "len"
    if isinstance(parent, cst.Comparison):
        return all(isinstance(each.operator, cst.Is | cst.IsNot) for each in parent.comparisons)
    return updates(source, use) == source.code(use)
