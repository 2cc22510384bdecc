"""The readers of a variable outside the order of the text: handlers, other files, and code that sees all names."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from diagnose.source.dataflow.exception_handlers import may_catch
from diagnose.source.dataflow.flow import Loop, is_variable, scope_of, within
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_SEES_ALL = frozenset({"locals", "globals", "vars", "eval", "exec", "breakpoint", "set_trace", "embed"})


def seen_after_failure(source: Source, loop: Loop, names: Iterable[str]) -> str | None:
    """Why what a loop has gathered may be looked at when the loop is left by an exception; None where it is not."""
    scope = scope_of(source, loop)
    wanted = set(names)
    for above in source.ancestors(loop):
        if above is scope:
            break
        if isinstance(above, cst.Try) or may_catch({"": source}, source, above, None):
            begin = source.span(loop)[0]
            for use in source.every(cst.Name, scope):
                later = source.span(use)[0] > begin and not within(source, use, loop)
                if use.value in wanted and later and is_variable(source, use):
                    return f"`{use.value}` may be used after an exception, in line {source.lines_of(use)[0]}"
    for use in source.every(cst.Name, loop):
        if use.value not in wanted:
            continue
        inner = (above for above in source.ancestors(use) if within(source, above, loop))
        if any(_is_left(source, above) for above in inner):
            return f"`{use.value}` is used where an exception is caught, in line {source.lines_of(use)[0]}"
    return None


def _is_left(source: Source, around: cst.CSTNode) -> bool:
    """Whether code goes on behind a statement, or in it, that an exception leaves."""
    finishes = isinstance(around, cst.Try) and around.finalbody is not None
    return finishes or may_catch({"": source}, source, around, None)


def seen_elsewhere(source: Source, others: Iterable[Source], scope: cst.CSTNode, name: str) -> str | None:
    """Why a variable may be seen by code that does not name it here: by `locals()`, or from another file."""
    below = source.module if isinstance(scope, cst.Module) else scope
    for call in source.every(cst.Call, below):
        of_object = call_name(call) == "vars" and call.args and "modules" not in source.code(call)
        of_model = call_name(call) == "eval" and isinstance(call.func, cst.Attribute)
        if call_name(call) in _SEES_ALL and not of_object and not of_model:
            return f"may be seen by `{call_name(call)}`, in line {source.lines_of(call)[0]}"
    if not isinstance(scope, cst.Module):
        return None
    for other in others:
        if other is source:
            continue
        imported = (
            alias
            for each in other.every(cst.ImportFrom)
            if not isinstance(each.names, cst.ImportStar)
            for alias in each.names
        )
        if any(isinstance(alias.name, cst.Name) and alias.name.value == name for alias in imported):
            return "is imported by another file"
    return None
