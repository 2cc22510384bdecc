"""Whether what an expression makes is made once for all epochs, anew in each, or for one pass alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.flow import is_repeated, within
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source, parse

_GO_THROUGH_ONCE = frozenset({"enumerate", "zip", "iter", "islice", "tqdm", "track"})


def is_built_again(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> bool:
    """Whether a loop evaluates an expression in each turn: one around it, or around calls of the function it is in.

    Each function is looked at once: where most call each other, as `__init__` does, the ways through them are too many.
    """
    pending, seen = [(source, node)], set[cst.CSTNode]()
    while pending:
        source, node = pending.pop()
        if is_repeated(source, node):
            return True
        function = source.inside(node, cst.FunctionDef)
        if function is not None and function not in seen:
            seen.add(function)
            pending += _calls_of(sources, source, function)
    return False


def is_for_one_pass(sources: Mapping[str, str], source: Source, node: cst.CSTNode) -> bool:
    """Whether an expression, or all calls of the function that returns it, stand where a `for` goes through them.

    Each function is looked at once, as in `is_built_again`.
    """
    pending, seen, gone_through = [(source, node)], set[cst.CSTNode](), False
    while pending:
        source, node = pending.pop()
        user = _user_of(source, node)
        if isinstance(user, cst.For):
            gone_through = True
            continue
        function = source.inside(user, cst.FunctionDef) if user is not None else None
        calls = list(_calls_of(sources, source, function)) if function is not None and function not in seen else []
        if function is None or not (calls or function in seen):
            return False
        seen.add(function)
        pending += calls
    return gone_through


def _user_of(source: Source, node: cst.CSTNode) -> cst.For | cst.Return | None:
    """The `for` that goes through an expression, or the `return` that hands it on; None where it is kept."""
    for above in source.ancestors(node):
        if isinstance(above, cst.For):
            return above if above.iter is node else None
        if isinstance(above, cst.Return):
            return above
        if isinstance(above, cst.Call) and call_name(above) in _GO_THROUGH_ONCE:
            node = above
        elif not isinstance(above, cst.Arg):
            return None
    return None


def _calls_of(
    sources: Mapping[str, str], source: Source, function: cst.FunctionDef
) -> Iterator[tuple[Source, cst.Call]]:
    """Calls by its name elsewhere: of a method on any object, of a function by itself or from its module."""
    name = function.name.value
    method = isinstance(source.parent(source.parent(function) or function), cst.ClassDef)
    for text in sources.values():
        other = parse(text) if name in text else None
        for call in other.calls_named(name) if other is not None else ():
            if other is None or within(other, call, function):
                continue
            if method or isinstance(call.func, cst.Name) or _is_of_a_module(other, call.func):
                yield other, call


def _is_of_a_module(source: Source, called: cst.BaseExpression) -> bool:
    while isinstance(called, cst.Attribute):
        called = called.value
    imported = {each.evaluated_alias or each.evaluated_name.partition(".")[0] for each in source.every(cst.ImportAlias)}
    return isinstance(called, cst.Name) and called.value in imported
