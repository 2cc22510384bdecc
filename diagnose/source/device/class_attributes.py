"""Attributes that a class keeps for itself, followed through all its methods like the variables of one function."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.dataflow.flow import Uses, Variable
from diagnose.source.tree.attributes import class_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_WHOLE = frozenset({"vars", "getattr", "setattr", "delattr", "asdict", "deepcopy", "copy", "dump", "dumps"})
_PLAIN_BASES = frozenset({"object", "torch.nn.Module", "torch.nn.modules.module.Module"})

_SETTERS = frozenset({"__setattr__", "__getattribute__"})


def uses_of_attribute(source: Source, others: Iterable[Source], node: cst.Attribute) -> Uses:
    """Every use of `self.name` in the class around a node; lost where something else may use it, too."""
    around = class_of(source, node)
    name = node.attr.value
    if around is None or source.code(node.value) != "self":
        return Uses((), (), (), "is no attribute of the class around")
    assigned: list[tuple[Variable, cst.BaseExpression]] = []
    augmented: list[tuple[Variable, cst.AugAssign]] = []
    reads: list[Variable] = []
    lost = _lost(source, others, around, name)
    for use in source.every(cst.Attribute, around):
        if use.attr.value != name or source.code(use.value) != "self":
            continue
        parent = source.parent(use)
        above = source.parent(parent) if parent is not None else None
        if isinstance(parent, cst.AssignTarget) and isinstance(above, cst.Assign):
            if isinstance(above.value, cst.Integer | cst.Float) or len(above.targets) == 1:
                assigned.append((use, above.value))
            else:
                lost = "is bound in a way that is not followed"
        elif isinstance(parent, cst.AnnAssign) and parent.target is use and parent.value is not None:
            assigned.append((use, parent.value))
        elif isinstance(parent, cst.AugAssign) and parent.target is use:
            augmented.append((use, parent))
        elif isinstance(parent, cst.Element | cst.Del | cst.NamedExpr) or _is_target(source, use):
            lost = "is bound in a way that is not followed"
        else:
            reads.append(use)
    return Uses(tuple(assigned), tuple(augmented), tuple(reads), lost)


def _is_target(source: Source, use: cst.Attribute) -> bool:
    parent = source.parent(use)
    return (
        isinstance(parent, cst.For | cst.CompFor | cst.WithItem | cst.AsName) and getattr(parent, "target", use) is use
    )


def _lost(source: Source, others: Iterable[Source], around: cst.ClassDef, name: str) -> str | None:
    """Why an attribute cannot be followed: code beyond the class sees it, or sees the object as a whole."""
    bases = [each for base in around.bases for each in (source.names(base.value) or {source.code(base.value)})]
    if around.decorators or around.keywords or not set(bases) <= _PLAIN_BASES:
        return "belongs to a class that others have a part in"
    if not _SETTERS.isdisjoint(each.name.value for each in source.every(cst.FunctionDef, around)):
        return "is set by a method of its class"
    for each in source.every(cst.Name, around):
        parent = source.parent(each)
        whole = not isinstance(parent, cst.Param | cst.Attribute)
        if each.value == "self" and whole:
            return f"belongs to an object that is handed on whole, in line {source.lines_of(each)[0]}"
    for one in (source, *(each for each in others if each is not source)):
        reason = _seen_outside(source, one, around, name)
        if reason is not None:
            return reason
    return None


def _seen_outside(source: Source, one: Source, around: cst.ClassDef, name: str) -> str | None:
    for attribute in one.every(cst.Attribute):
        if attribute.attr.value in {"__dict__", "__getstate__"}:
            return "may be seen with all that an object holds"
        here = one is source and source.inside(attribute, cst.ClassDef) is around
        if attribute.attr.value == name and not (here and source.code(attribute.value) == "self"):
            own = one.inside(attribute, cst.ClassDef)
            if own is None or own is around or one.code(attribute.value) != "self":
                return "is used from outside of its class"
    for made in one.every(cst.ClassDef):
        if any(one.code(base.value).rpartition(".")[2] == around.name.value for base in made.bases):
            return "is inherited by another class"
    for call in one.every(cst.Call):
        given = call.args[0].value if call.args else None
        if call_name(call) in _WHOLE and isinstance(given, cst.Name):
            return "may be seen with all that an object holds"
    return None
