"""Whether a program may notice that a tensor has no graph: it prints, saves or differentiates the tensor itself.

`print(loss)` shows `grad_fn=…`, a saved tensor keeps `requires_grad`, and `backward` needs the graph. A number that is
read from the tensor (`loss.item()`, `f"{loss:.3f}"`) is the same without. Only uses that are followed count as these.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import scope_of, uses_of
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

_MADE_OF_IT = frozenset(
    {"abs", "argmax", "argmin", "bool", "clone", "contiguous", "cpu", "cuda", "double", "exp", "flatten", "float"}
    | {"half", "log", "log_softmax", "long", "max", "mean", "min", "norm", "permute", "pow", "reshape", "sigmoid"}
    | {"softmax", "sqrt", "square", "squeeze", "std", "sum", "t", "to", "transpose", "unsqueeze", "var", "view"}
    | {"cat", "stack"}
)
"""Methods of tensors and functions of torch that compute another tensor, with a graph where there is one."""
_READS = frozenset({"item", "tolist", "detach", "size", "dim", "numel"})
_OF_NUMBERS = frozenset({"float", "int", "bool", "len"})
_OF_ITEMS = frozenset({"sum", "max", "min", "list", "tuple", "sorted", "reversed", "enumerate", "zip", "abs"})
_HOLDS = (
    *(cst.BinaryOperation, cst.UnaryOperation, cst.IfExp, cst.Element, cst.List, cst.Tuple),
    *(cst.ListComp, cst.GeneratorExp),
)
"""Expressions that hold a value, or are made of it."""
_FURTHEST = 40
"""Steps from a use to its end; a longer way, or one that goes in a circle, is not followed."""


def shows_graph(sources: Mapping[str, str], source: Source, use: cst.BaseExpression, left: int = _FURTHEST) -> bool:
    """Whether a use of a tensor, or of a collection of tensors, ends in more than a number that is read from it."""
    if left == 0:
        return True
    parent = source.parent(use)
    if isinstance(parent, cst.Expr | cst.Comparison | cst.ComparisonTarget):
        return False
    if isinstance(parent, cst.If | cst.While):
        return False  # a truth value
    if isinstance(parent, cst.FormattedStringExpression):
        return parent.format_spec is None
    if isinstance(parent, cst.BinaryOperation) and isinstance(parent.left, cst.SimpleString):
        return "%s" in parent.left.value or "%r" in parent.left.value
    return any(shows_graph(sources, at, each, left - 1) for at, each in _further(sources, source, use, parent)) or (
        not _is_followed(source, use, parent)
    )


def _is_followed(source: Source, use: cst.BaseExpression, parent: cst.CSTNode | None) -> bool:
    """Whether nothing but what `_further` lists sees the value."""
    if isinstance(parent, cst.Assign):
        target = parent.targets[0].target
        return (
            len(parent.targets) == 1
            and isinstance(target, cst.Name)
            and uses_of(source, scope_of(source, use), target.value).lost is None
        )
    if isinstance(parent, cst.Attribute):
        call = source.parent(parent)
        method = isinstance(call, cst.Call) and call.func is parent
        if parent.attr.value in {"shape", "device", "dtype", "ndim"} | (_READS if method else frozenset()):
            return True
        return method and parent.attr.value in _MADE_OF_IT
    if isinstance(parent, cst.Arg):
        call = source.parent(parent)
        if not isinstance(call, cst.Call) or parent.star:
            return False
        if isinstance(call.func, cst.Name) and call.func.value in _OF_NUMBERS | _OF_ITEMS:
            return call.func.value not in source.function_names
        return _is_format(call) or (
            call_name(call) in _MADE_OF_IT and any(name.startswith("torch.") for name in source.names(call.func))
        )
    if isinstance(parent, cst.Subscript):
        return parent.value is use
    if isinstance(parent, cst.CompFor | cst.For):
        return parent.iter is use and isinstance(parent.target, cst.Name)
    row = source.parent(parent) if isinstance(parent, cst.Element) else parent
    if isinstance(parent, cst.Return) or isinstance(source.parent(row) if row is not None else None, cst.Return):
        return _callers_are_seen(source, use)
    return isinstance(parent, _HOLDS)


def _is_format(call: cst.Call) -> bool:
    """`"{:.3f}".format(…)`, each field with a format of its own, which a tensor of one element reads its number for."""
    if not (isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.SimpleString)):
        return False
    text = call.func.value.evaluated_value
    if call.func.attr.value != "format" or not isinstance(text, str):
        return False
    return all(spec for _, field, spec, _ in string.Formatter().parse(text) if field is not None)


def _further(
    sources: Mapping[str, str], source: Source, use: cst.BaseExpression, parent: cst.CSTNode | None
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """The expressions that hold what a use gives on."""
    if isinstance(parent, cst.Assign) and isinstance(target := parent.targets[0].target, cst.Name):
        yield from ((source, read) for read in uses_of(source, scope_of(source, use), target.value).reads)
    elif isinstance(parent, cst.Attribute):
        call = source.parent(parent)
        if isinstance(call, cst.Call) and parent.attr.value in _MADE_OF_IT:
            yield source, call
    elif isinstance(parent, cst.Arg):
        call = source.parent(parent)
        ends = isinstance(call, cst.Call) and (_is_format(call) or source.code(call.func) in _OF_NUMBERS)
        if isinstance(call, cst.Call) and not ends:
            yield source, call
    elif isinstance(parent, cst.CompFor | cst.For) and isinstance(parent.target, cst.Name):
        below = source.parent(parent) if isinstance(parent, cst.CompFor) else parent
        for name in source.every(cst.Name, below) if below is not None else ():
            if name.value == parent.target.value and name is not parent.target:
                yield source, name
    elif isinstance(parent, cst.Element):
        row = source.parent(parent)
        if isinstance(row, cst.List | cst.Tuple | cst.Set):
            returned = source.parent(row)
            if isinstance(row, cst.Tuple) and isinstance(returned, cst.Return):
                yield from _at_callers(sources, source, use, row.elements.index(parent), len(row.elements))
            else:
                yield source, row
    elif isinstance(parent, cst.Return):
        yield from _at_callers(sources, source, use, None, 0)
    elif isinstance(parent, cst.BaseExpression):
        yield source, parent


def _callers_are_seen(source: Source, use: cst.BaseExpression) -> bool:
    """Whether only the program calls the function that returns it: a library may call a method of its own class."""
    function = source.inside(use, cst.FunctionDef)
    owner = source.inside(function, cst.ClassDef) if function is not None else None
    return function is not None and not function.decorators and (owner is None or not owner.bases)


def _at_callers(
    sources: Mapping[str, str], source: Source, use: cst.BaseExpression, position: int | None, length: int
) -> Iterator[tuple[Source, cst.BaseExpression]]:
    """Yield what callers get: the call, or the name that takes the part at `position` of what is returned."""
    function = source.inside(use, cst.FunctionDef)
    for text in {source.text, *sources.values()}:
        other = source if text == source.text else parse(text)
        for name in other.every(cst.Name) if other is not None and function is not None else ():
            assert other is not None
            assert function is not None
            holder = other.parent(name)
            if name.value != function.name.value or isinstance(holder, cst.FunctionDef | cst.ImportAlias):
                continue
            if isinstance(holder, cst.Attribute) and holder.attr is name:
                name_or_attribute: cst.CSTNode = holder
                holder = other.parent(holder)
            else:
                name_or_attribute = name
            if not isinstance(holder, cst.Call) or holder.func is not name_or_attribute:
                yield other, name  # handed to others, which no use of a tensor is
            elif position is None:
                yield other, holder
            else:
                yield from _part(other, holder, position, length)


def _part(source: Source, call: cst.Call, position: int, length: int) -> Iterator[tuple[Source, cst.BaseExpression]]:
    assign = source.parent(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    if not isinstance(target, cst.Tuple) or len(target.elements) != length:
        yield source, call
        return
    part = target.elements[position].value
    if not isinstance(part, cst.Name):
        yield source, call
        return
    scope = scope_of(source, call)
    for name in source.every(cst.Name, scope):
        bound = source.inside(name, cst.AssignTarget) is not None
        if name.value == part.value and scope_of(source, name) is scope and not bound:
            yield source, name
