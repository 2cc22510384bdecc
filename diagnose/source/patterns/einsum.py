"""The two products of attention written as `einsum`, as axes of queries, keys and values in the usual order."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from diagnose.source.patterns.formula import Operation


@dataclass(frozen=True)
class ProductOfScores:
    """queries × keys → scores."""

    query: cst.BaseExpression
    key: cst.BaseExpression
    query_order: tuple[int, ...]
    """The axes of the query as it is, in the order (batch…, length, width)."""
    key_order: tuple[int, ...]


@dataclass(frozen=True)
class ProductOfValues:
    """weights × values → result."""

    weights: cst.BaseExpression
    value: cst.BaseExpression
    value_order: tuple[int, ...]
    result_order: tuple[int, ...]
    """The axes of (batch…, length, width) in the order that the program wants."""


def _parts(made: Operation) -> tuple[str, str, str, cst.BaseExpression, cst.BaseExpression] | None:
    if made.name != "einsum" or not made.operands or not isinstance(made.operands[0], cst.SimpleString):
        return None
    operands = made.operands[1:]
    if len(operands) == 1 and isinstance(operands[0], cst.List | cst.Tuple):
        operands = tuple(element.value for element in operands[0].elements)
    equation = str(made.operands[0].evaluated_value).replace(" ", "")
    inputs, arrow, result = equation.partition("->")
    left, comma, right = inputs.partition(",")
    if not (arrow and comma) or len(operands) != 2 or not (left + right + result).isalpha():
        return None
    if any(len(set(axes)) != len(axes) for axes in (left, right, result)):
        return None
    return left, right, result, operands[0], operands[1]


def product_of_scores(made: Operation) -> ProductOfScores | None:
    """Read `bhqd,bhkd->bhqk` and its like."""
    parts = _parts(made)
    if parts is None:
        return None
    left, right, result, first, second = parts
    if len(result) < 3:
        return None
    if result[-2] in right and result[-1] in left:
        left, right, first, second = right, left, second, first
    batch, query, key = result[:-2], result[-2], result[-1]
    summed = (set(left) & set(right)) - set(result)
    if len(summed) != 1 or set(left) != {*batch, query, *summed} or set(right) != {*batch, key, *summed}:
        return None
    width = summed.pop()
    return ProductOfScores(first, second, _order(left, batch + query + width), _order(right, batch + key + width))


def product_of_values(made: Operation) -> ProductOfValues | None:
    """Read `bhqk,bhkd->bhqd` and its like."""
    parts = _parts(made)
    if parts is None:
        return None
    left, right, result, first, second = parts
    if len(left) < 3:
        return None
    batch, query, key = left[:-2], left[-2], left[-1]
    width = set(right) - set(left)
    if len(width) != 1 or set(right) != {*batch, key, *width} or set(result) != {*batch, query, *width}:
        return None
    last = width.pop()
    return ProductOfValues(first, second, _order(right, batch + key + last), _order(batch + query + last, result))


def _order(has: str, wanted: str) -> tuple[int, ...]:
    return tuple(has.index(axis) for axis in wanted)
