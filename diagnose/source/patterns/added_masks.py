"""Masks that are added to the scores of attention: what a fused kernel does not take of them, or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import definition_of
from diagnose.source.patterns.formula import constant
from diagnose.source.tree.literals import string
from diagnose.source.tree.syntax import Source

_SWALLOWS = 1e5
"""A number of this size leaves little of float32 scores that it is added to. Of a row that it hides whole, kernels that
keep the logarithm of the row's sum then get the gradients wrong: of a row of six keys whose gradients are about 100, by
0.007 at 1e4, where the scores written out are off by 0.005 themselves, by 0.12 at 1e5, and by 78 at 1e9 (measured with
torch 2.13 on a CPU)."""
_FLOATING = frozenset(
    {"float", "double", "half", "bfloat16", "float32", "float16", "to", "type_as", "type", "finfo", "dtype", "inf"}
)
"""Names in an expression by which its numbers are no whole ones."""


def is_of_whole_numbers(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a mask may be of whole numbers, `(1 - mask) * -10000`, which the kernel does not take."""
    for made in _made_from(source, node):
        node = made
    if not isinstance(node, cst.BinaryOperation):
        return False
    made_by = {name.attr.value for name in source.every(cst.Attribute, node)}
    made_by |= {source.code(call.func) for call in source.every(cst.Call, node)}
    return any(source.every(cst.Integer, node)) and not any(source.every(cst.Float, node)) and not made_by & _FLOATING


def swallows_scores(source: Source, node: cst.BaseExpression) -> bool:
    """Whether a mask may hide keys by a number so low that nothing is left of the scores, `(1 - mask) * -1e9`.

    A mask comes by many ways, so all such numbers of its file count, and the least number of a format by any name.
    """
    if "finfo" in source.words or any(map(_is_large, source.walk(node, cst.Integer, cst.Float))):
        return True
    negated = (each for each in source.every(cst.UnaryOperation) if isinstance(each.operator, cst.Minus))
    if any(_swallows(constant(source, each)) for each in negated):
        return True
    return any(_swallows(_number(string(each))) for each in source.every(cst.SimpleString))


def _made_from(source: Source, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a name is bound to where it is read, and so on; nothing of other expressions."""
    while isinstance(node, cst.Name):
        assigned = definition_of(source, node).assigned
        if assigned is None:
            return
        node = assigned
        yield node


def _is_large(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Integer | cst.Float) and node.evaluated_value >= _SWALLOWS


def _swallows(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value <= -_SWALLOWS


def _number(text: str | None) -> float | None:
    """Return what a string says as a number, `"-1e9"`; None for others."""
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
