"""The binding of a name: the one statement that binds it, the parameter that it is, or the import.

A name that is bound twice, in a loop, or by a statement that is not understood has no binding here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from diagnose.source.tree.arguments import argument, has_star
from diagnose.source.tree.attributes import class_of, is_of_self, members_named
from diagnose.source.tree.definitions import is_foreign
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.syntax import Source

Scope = cst.FunctionDef | cst.ClassDef | cst.Module
_SCOPES = (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.Module)
_TELLS = frozenset({"print", "str", "repr", "info", "debug", "warning", "log", "format", "write"})


@dataclass(frozen=True, slots=True)
class Binding:
    """The one binding of a name: one of `value`, `parameter` and `imported` is set."""

    scope: Scope
    value: cst.BaseExpression | None = None
    parameter: cst.Param | None = None
    imported: tuple[str, str] | None = None
    """Module, with a dot for each level that a relative import goes up, and the name in it."""


@per_source
def binding_of(source: Source, node: cst.Name) -> Binding | None:
    """Return the binding of the name that `node` reads."""
    for scope in _scopes(source, node):
        if isinstance(scope, cst.FunctionDef):
            parameter = parameter_of(scope, node.value)
            if parameter is not None:
                return None if values_in(source, scope, node.value) else Binding(scope, parameter=parameter)
        values = values_in(source, scope, node.value)
        if values is None or len(values) > 1:
            return None
        if values:
            return Binding(scope, value=values[0])
        imported = _imported(source, scope, node.value)
        if imported is not None:
            return Binding(scope, imported=imported)
    return None


def bound_to(source: Source, node: cst.Name) -> list[cst.BaseExpression | cst.FunctionDef | cst.ClassDef]:
    """All that the name which `node` reads is given in its scope, functions and classes too; empty where that is not
    known, as of parameters and imports."""
    for scope in _scopes(source, node):
        if isinstance(scope, cst.FunctionDef) and parameter_of(scope, node.value) is not None:
            return []
        kinds = (cst.FunctionDef, cst.ClassDef)
        made = [one for one in source.walk(scope, *kinds) if isinstance(one, kinds) and one.name.value == node.value]
        own = [one for one in made if next(_scopes(source, one), None) is scope]
        values = values_in(source, scope, node.value)
        if values is None or values or own:
            return [*own, *values] if values is not None else []
    return []


def values_of(source: Source, node: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
    """All that a variable with one binding, or an attribute of `self`, is given; empty where that is not known."""
    if isinstance(node, cst.Name):
        bound = binding_of(source, node)
        return [bound.value] if bound is not None and bound.value is not None else []
    around = class_of(source, node) if is_of_self(node) else None
    return (
        members_named(source, around, node.attr.value) if around is not None and isinstance(node, cst.Attribute) else []
    )


def is_plain(source: Source, name: cst.Name, depth: int = 4) -> bool:
    """Whether a name stands for numbers, texts and tuples of them alone, which nothing changes in place."""
    if name.value in {"None", "True", "False"}:
        return True
    values = bound_to(source, name) if depth else []
    others = (cst.Call, cst.Attribute, cst.Subscript, cst.List, cst.Dict, cst.Set, cst.BaseComp)
    return bool(values) and all(
        isinstance(each, cst.BaseExpression)
        and not any(source.walk(each, *others))
        and all(is_plain(source, one, depth - 1) for one in source.every(cst.Name, each))
        for each in values
    )


def _scopes(source: Source, node: cst.CSTNode) -> Iterator[Scope]:
    """Yield the scopes around a node; none beyond a lambda that has the parameter which it reads."""
    direct = True
    below = node
    for above in source.ancestors(node):
        if isinstance(above, cst.Lambda) and below is above.body and _takes(above, node):
            return
        below = above
        if isinstance(above, cst.FunctionDef | cst.Module) or (isinstance(above, cst.ClassDef) and direct):
            yield above
        direct = direct and not isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Lambda)


def _takes(function: cst.Lambda, node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and parameter_of(function, node.value) is not None


def parameter_of(function: cst.FunctionDef | cst.Lambda, name: str) -> cst.Param | None:
    """The parameter of that name, however it is given; not one that takes the rest."""
    listed = function.params
    return next(
        (each for each in (*listed.posonly_params, *listed.params, *listed.kwonly_params) if each.name.value == name),
        None,
    )


@per_source
def values_in(source: Source, scope: Scope, name: str) -> list[cst.BaseExpression] | None:
    """All that the name is bound to in a scope; None where some binding is not understood."""
    named = source.named(name, scope)
    return values_stored(source, [node for node in named if _scope_of(source, node, name) is scope])


def values_stored(source: Source, nodes: Iterable[cst.Name | cst.Attribute]) -> list[cst.BaseExpression] | None:
    """All that statements bind any of these nodes to; None where some binding is not understood."""
    found: list[cst.BaseExpression] = []
    for node in nodes:
        parent = source.parent(node)
        above = source.parent(parent) if parent is not None else None
        if isinstance(parent, cst.AssignTarget) and isinstance(above, cst.Assign):
            found.append(above.value)
        elif isinstance(parent, cst.AnnAssign) and parent.target is node:
            if parent.value is not None:
                found.append(parent.value)
        elif isinstance(parent, cst.Element) and (value := _unpacked(source, parent)) is not None:
            found.append(value)
        elif _binds_otherwise(source, node):
            return None
    return found


def _scope_of(source: Source, node: cst.CSTNode, name: str) -> cst.CSTNode:
    """The scope that a name is looked up in first; the module where the function declares it global."""
    above = source.inside(node, _SCOPES)
    if isinstance(above, cst.FunctionDef):
        declared = (item.name.value for each in source.every(cst.Global, above) for item in each.names)
        return source.module if name in declared else above
    return above or source.module


def _unpacked(source: Source, element: cst.BaseElement) -> cst.BaseExpression | None:
    """Return what `a, b = 1, 2` binds one of its names to; None where that is not seen."""
    group = source.parent(element)
    target = source.parent(group) if isinstance(group, cst.Tuple | cst.List) else None
    assign = source.parent(target) if isinstance(target, cst.AssignTarget) else None
    if not isinstance(group, cst.Tuple | cst.List) or not isinstance(assign, cst.Assign):
        return None
    if not isinstance(assign.value, cst.Tuple | cst.List) or len(assign.value.elements) != len(group.elements):
        return None
    if any(isinstance(each, cst.StarredElement) for each in (*group.elements, *assign.value.elements)):
        return None
    return assign.value.elements[group.elements.index(element)].value


def _binds_otherwise(source: Source, node: cst.Name | cst.Attribute) -> bool:
    below: cst.CSTNode = node
    for above in source.ancestors(node):
        if isinstance(above, cst.AugAssign | cst.NamedExpr | cst.For | cst.CompFor | cst.AssignTarget):
            return above.target is below
        if isinstance(above, cst.AsName | cst.Del):
            return not isinstance(source.parent(above), cst.ImportAlias)
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement | cst.Call | cst.Attribute | cst.Subscript):
            return False
        below = above
    return False


@per_source
def _imported(source: Source, scope: Scope, name: str) -> tuple[str, str] | None:
    star: tuple[str, str] | None = None
    for statement in source.every(cst.ImportFrom, scope):
        module = "." * len(statement.relative) + (dotted(statement.module) if statement.module else "")
        if isinstance(statement.names, cst.ImportStar):
            star = (module, name)
            continue
        for alias in statement.names:
            known = alias.asname.name if alias.asname is not None else alias.name
            if isinstance(known, cst.Name) and known.value == name and isinstance(alias.name, cst.Name):
                return module, alias.name.value
    return star


def dotted(node: cst.BaseExpression) -> str:
    """`a.b` for a name or attributes of a name; empty for other expressions."""
    if isinstance(node, cst.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr.value}" if inner else ""
    return node.value if isinstance(node, cst.Name) else ""


def passed_to(
    function: cst.FunctionDef, parameter: cst.Param, owner: str | None, sources: Mapping[str, Source]
) -> list[tuple[str, cst.BaseExpression | None]] | None:
    """Return the arguments that calls of a function pass for a parameter, each with its file; None as an argument where
    the default is used.

    `owner` is the class whose constructor the function is. None where a call cannot be read, and for the object that a
    method is called on, which no argument is.
    """
    listed = (*function.params.posonly_params, *function.params.params)
    position = listed.index(parameter) if parameter in listed else None
    first = listed[0].name.value if listed else ""
    bound = first in {"self", "cls"}
    if bound and position == 0:
        return None
    name = owner or function.name.value
    found: list[tuple[str, cst.BaseExpression | None]] = []
    for path, source in sources.items():
        for call in source.calls_named(name):
            if is_foreign(source, call.func, sources):
                continue  # a library has one of that name too
            whole = not bound or (first == "self" and owner is None and _is_of_class(call, sources))
            at = position if whole or position is None else position - 1
            given = argument(call, parameter.name.value, at)
            if given is None and has_star(call):
                return None
            found.append((path, given.value if given is not None else None))
    return found


def _is_of_class(call: cst.Call, sources: Mapping[str, Source]) -> bool:
    """Whether a method is taken from a class of the program's, and so is given its object: `Base.build(self, x)`."""
    named = dotted(call.func.value).rpartition(".")[2] if isinstance(call.func, cst.Attribute) else ""
    return any(named in source.outline.classes for source in sources.values())


def read_by_others(source: Source, scope: Scope, name: str, calls: frozenset[str]) -> bool:
    """Whether a name is read for more than what some calls take, and what is told to people.

    Named on as an argument of the same name it is the same thing still.
    """
    for node in source.named(name, scope):
        parent = source.parent(node)
        target = isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.Param | cst.Element) and not (
            isinstance(parent, cst.AnnAssign) and parent.value is node
        )
        if target or (isinstance(parent, cst.Attribute) and parent.attr is node):
            continue
        if isinstance(parent, cst.Arg) and (
            parent.keyword is node or (parent.keyword and parent.keyword.value == name)
        ):
            continue
        if not _is_told(source, node, calls):
            return True
    return False


def _is_told(source: Source, node: cst.Name, calls: frozenset[str]) -> bool:
    for above in source.ancestors(node):
        if isinstance(above, cst.FormattedStringExpression):
            return True
        if isinstance(above, cst.Call) and above.func is not node and call_name(above) in calls | _TELLS:
            return True
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return isinstance(above, cst.Import | cst.ImportFrom | cst.Global)
    return False
