"""Handlers of signals that worker processes would run beside the program: they begin as copies of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from diagnose.source.dataflow.bindings import values_of
from diagnose.source.tree.arguments import argument
from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_NOT_IN_WORKERS = ("signal.SIGTERM", "signal.SIGALRM", "signal.SIGCHLD")
"""A worker of torch's handles the first in its own way; the others are sent to one process alone."""
_LEAVES = frozenset({"set", "signal", "exit", "SystemExit", "KeyboardInterrupt"})
"""Calls that tell a thread, set another handler, or end a process as an interrupt does."""


def handler_in_workers(sources: Mapping[str, Source]) -> str | None:
    """The line that sets a handler which does more than note a signal or end the process; None where none does.

    A terminal sends Ctrl-C to all processes of a program, and a scheduler may send what it is asked to: each worker
    that was forked after the line would print and save as the program does, with the weights that it began with.
    """
    for path, source in sources.items():
        for call in source.calls_named("signal") if source.may_name("signal") else ():
            number, handler = argument(call, "signalnum", 0), argument(call, "handler", 1)
            if number is None or handler is None or not source.is_called(call.func, "signal.signal"):
                continue
            if not source.is_called(number.value, *_NOT_IN_WORKERS) and _does_more(sources, source, handler.value):
                return f"{path}:{source.lines_of(call)[0]}"
    return None


def _does_more(sources: Mapping[str, Source], source: Source, handler: cst.BaseExpression) -> bool:
    """Whether a handler does more than note the signal or end the process, as far as it is seen."""
    if source.is_called(handler, "signal."):
        return False  # to ignore it, or what Python does by default
    if isinstance(handler, cst.Lambda):
        return _acts(source, handler.body)
    former = [each for each in values_of(source, handler) if isinstance(each, cst.Call)]
    if former:
        return not all(source.is_called(each.func, "signal.") for each in former)
    functions = list(_functions(sources, handler))
    return not functions or any(_acts(other, each.body) for other, each in functions)


def _functions(sources: Mapping[str, Source], handler: cst.BaseExpression) -> Iterator[tuple[Source, cst.FunctionDef]]:
    """The functions and methods of the program that an expression may name."""
    named = handler.attr if isinstance(handler, cst.Attribute) else handler
    for source in sources.values():
        yield from ((source, each) for each in source.functions_named(getattr(named, "value", "")))


def _acts(source: Source, body: cst.CSTNode) -> bool:
    """Whether code calls what another process of the program may not call as well, or raises an error of its own."""
    raised = (each.exc for each in source.every(cst.Raise, body))
    errors = {source.code(each).partition("(")[0] for each in raised if each is not None}
    return not errors <= _LEAVES or any(call_name(call) not in _LEAVES for call in source.every(cst.Call, body))
