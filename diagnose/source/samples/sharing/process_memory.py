"""Changes that only their own process sees: variables and attributes that are bound anew.

Worker processes make samples from copies that they got when they started. What the main process binds meanwhile stays
as it was there, however many workers there are; what lies in memory that processes share does not.
"""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_SHARES = frozenset(
    {"Manager", "SyncManager", "BaseManager", "sharedctypes", "ctypes", "ray", "__setattr__", "__set__"}
)
"""What hands a bound attribute on to other processes, or may."""
_PLAIN = frozenset({"isinstance", "hasattr", "bool", "int", "float"})
"""Calls that change nothing."""
_WRITTEN = frozenset({"value", "real", "imag", "flat", "data"})
"""Attributes that write memory when they are bound: of `multiprocessing.Value`, of tensors and of arrays."""


def stays_in_process(sources: Iterable[Source], source: Source, target: cst.BaseExpression) -> bool:
    """Whether what a statement changes is a variable or an attribute that it binds anew, in this process alone.

    A property of the program's own counts where its setter does nothing but bind attributes.
    """
    files = list(sources)
    if any(not _SHARES.isdisjoint(each.words) for each in files):
        return False
    return _binds(files, source, target, frozenset())


def _binds(files: Iterable[Source], source: Source, target: cst.BaseExpression, seen: frozenset[str]) -> bool:
    if not isinstance(target, cst.Attribute | cst.Name) or not isinstance(source.parent(target), cst.AssignTarget):
        return False
    if isinstance(target, cst.Name):
        return True
    name = target.attr.value
    if name in _WRITTEN or any(_is_of_class(each, name) for each in files if name in each.words):
        return False
    if name in seen:
        return True
    setters = [
        (each, function)
        for each in files
        if name in each.words
        for function in each.every(cst.FunctionDef)
        if function.name.value == name and "setter" in {_last(one.decorator) for one in function.decorators}
    ]
    return all(_only_binds(files, each, function, seen | {name}) for each, function in setters)


def _only_binds(files: Iterable[Source], source: Source, setter: cst.FunctionDef, seen: frozenset[str]) -> bool:
    """Whether a setter calls nothing and changes nothing but attributes that it binds anew."""
    if any(call_name(call) not in _PLAIN for call in source.every(cst.Call, setter.body)):
        return False
    if any(source.every(cst.AugAssign, setter.body)) or any(source.every(cst.Del, setter.body)):
        return False
    targets = [each.target for assign in source.every(cst.Assign, setter.body) for each in assign.targets]
    return all(_binds(files, source, each, seen) for each in targets)


def _is_of_class(source: Source, name: str) -> bool:
    """Whether a class binds a name to what a call makes, as `level = property(None, fill)`, which may be a setter."""
    return any(
        isinstance(bound, cst.Assign | cst.AnnAssign)
        and isinstance(bound.value, cst.Call)
        and isinstance(source.inside(bound, (cst.FunctionDef, cst.Lambda, cst.ClassDef)), cst.ClassDef)
        and any(isinstance(each, cst.Name) and each.value == name for each in _targets(bound))
        for bound in source.walk(None, cst.Assign, cst.AnnAssign)
    )


def _targets(bound: cst.Assign | cst.AnnAssign) -> list[cst.BaseExpression]:
    return [each.target for each in bound.targets] if isinstance(bound, cst.Assign) else [bound.target]


def _last(node: cst.BaseExpression) -> str:
    return node.attr.value if isinstance(node, cst.Attribute) else ""
