"""Switches that a program turns on for CUDA alone, for what the CPU has learned since: `new and device == "cuda"`."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.tree.edits import replace
from diagnose.source.tree.syntax import Source, Splice

_ASKS_FOR_CUDA = re.compile(
    r"""[\w.]+\s*==\s*["']cuda["']|["']cuda["']\s+in\s+[\w.]+|[\w.]+\.startswith\(["']cuda["']\)"""
)


def also_without_cuda(source: Source, choice: cst.BaseExpression) -> Splice | None:
    """The edit after which a condition, or a conditional expression, is as it is on CUDA on every device.

    Other conditions beside stay. A variable is followed to the one statement that binds it, which is edited where the
    variable serves for nothing else but messages. None where CUDA is not what decides.
    """
    test = choice.test if isinstance(choice, cst.IfExp) else choice
    decides: cst.BaseExpression = test
    if isinstance(test, cst.Name):
        bound = binding_of(source, test)
        if bound is None or bound.value is None:
            return None
        decides = bound.value
    rest = _rest(source, decides)
    if rest is None:
        return None
    if decides is not test and _serves_it_alone(source, test):
        return replace(source, decides, rest)
    if isinstance(choice, cst.IfExp) and rest == "True":
        return replace(source, choice, source.code(choice.body))
    return replace(source, test, rest)


def _rest(source: Source, test: cst.BaseExpression) -> str | None:
    """Return what a condition asks beside CUDA; None where it does not ask for that."""
    if _ASKS_FOR_CUDA.fullmatch(source.code(test)):
        return "True"
    if not isinstance(test, cst.BooleanOperation) or not isinstance(test.operator, cst.And):
        return None
    for asks, rest in ((test.left, test.right), (test.right, test.left)):
        if _ASKS_FOR_CUDA.fullmatch(source.code(asks)):
            return source.code(rest)
    return None


def _serves_it_alone(source: Source, test: cst.BaseExpression) -> bool:
    """Whether every other read of a variable is for a message."""
    reads = [
        name
        for name in source.every(cst.Name)
        if name.deep_equals(test) and not isinstance(source.parent(name), cst.AssignTarget | cst.AnnAssign)
    ]
    return all(read is test or isinstance(source.parent(read), cst.FormattedStringExpression) for read in reads)
