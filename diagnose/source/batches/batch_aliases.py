"""Batches that are no copies: samples that a collate function hands on as they are, and what training writes into them.

A worker process sends its samples to the training process, and pinning copies them: what training then writes into a
batch no longer changes what the dataset holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from diagnose.source.batches.sample_code import SampleCode
from diagnose.source.batches.sample_effects import SAME_MEMORY, root_of
from diagnose.source.batches.shared_objects import is_of_model
from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

_GATHER = frozenset({"tuple", "list", "dict", "zip", "sorted", "reversed", "enumerate", "iter", "next", "filter"})
"""Builtins whose results hold the objects that they are given."""
_COUNTED = frozenset({"range", "trange", "count"})


def hands_on(source: Source, function: cst.FunctionDef | cst.Lambda) -> bool:
    """Whether a function returns objects of what it is given, and no copies of them."""
    given = {param.name.value for param in source.every(cst.Param, function.params)} - {"self", "cls"}
    names = _parts_of(source, function, given)
    if isinstance(function, cst.Lambda):
        return _is_part(function.body, names)
    returned = (each.value for each in source.every(cst.Return, function))
    return any(value is not None and _is_part(value, names) for value in returned)


def written_batches(code: SampleCode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """What code that makes no samples writes into: variables of loops, what `next` gives, parameters; with its file."""
    for path, source in code.sources.items():
        for scope in (source.module, *source.every(cst.FunctionDef)):
            if scope in code.sampling or scope in code.building:
                continue
            names = _parts_of(source, scope, _taken(source, scope))
            for target in written_in_place(source, scope):
                root = root_of(target)
                its = source.inside(target, cst.FunctionDef) or source.module
                if its is scope and isinstance(root, cst.Name) and root.value in names:
                    yield path, target


def _taken(source: Source, scope: cst.CSTNode) -> set[str]:
    """The variables that a function may take a batch by."""
    found: set[str] = set()
    if isinstance(scope, cst.FunctionDef):
        found |= {param.name.value for param in source.every(cst.Param, scope.params)} - {"self", "cls"}
    for node in source.walk(scope, cst.For, cst.Assign):
        if isinstance(node, cst.For):
            counted = isinstance(node.iter, cst.Call) and call_name(node.iter) in _COUNTED
            names = [] if counted else [each for each in _bound(node.target) if not is_of_model(source, each)]
            found |= {each.value for each in names}
        elif isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and call_name(node.value) == "next":
            found |= {each.value for target in node.targets for each in _bound(target.target)}
    return found


def _parts_of(source: Source, scope: cst.CSTNode, names: set[str]) -> set[str]:
    """The names, and those of variables that are bound to parts of their objects."""
    found = {*names}
    before = -1
    while len(found) > before:
        before = len(found)
        for target, value in _bindings(source, scope):
            if _is_part(value, found):
                found |= {each.value for each in _bound(target)}
    return found


@per_source
def _bindings(source: Source, scope: cst.CSTNode) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Targets of a scope, each with what it is bound to or goes through."""
    found: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    for node in source.walk(scope, cst.Assign, cst.For, cst.CompFor, cst.NamedExpr):
        if isinstance(node, cst.Assign):
            found += [(each.target, node.value) for each in node.targets]
        elif isinstance(node, cst.For | cst.CompFor):
            found.append((node.target, node.iter))
        elif isinstance(node, cst.NamedExpr):
            found.append((node.target, node.value))
    return found


def _bound(target: cst.BaseExpression) -> list[cst.Name]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _bound(element.value)]
    return [target] if isinstance(target, cst.Name) else []


def _is_part(node: cst.BaseExpression, names: set[str]) -> bool:
    """Whether an expression may be an object that one of the names holds, or gather such."""
    pending: list[cst.BaseExpression] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, cst.Name) and each.value in names:
            return True
        if isinstance(each, cst.Subscript | cst.Attribute | cst.NamedExpr):
            pending.append(each.value)
        elif isinstance(each, cst.IfExp):
            pending += [each.body, each.orelse]
        elif isinstance(each, cst.Tuple | cst.List | cst.Dict):
            pending += [one.value for one in each.elements]
        elif isinstance(each, cst.ListComp | cst.GeneratorExp):
            pending.append(each.elt)
        elif isinstance(each, cst.DictComp):
            pending.append(each.value)
        elif isinstance(each, cst.Call) and isinstance(each.func, cst.Name) and each.func.value in _GATHER:
            pending += [arg.value for arg in each.args]
        elif isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute) and call_name(each) in SAME_MEMORY:
            pending.append(each.func.value)
    return False
