"""Activations written out of primitives: GELU in its two forms, and SiLU."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import same_value, see_the_same, statement_of
from diagnose.source.patterns.formula import Operation, certain, constant, is_of_tensors
from diagnose.source.rewrite.leftovers import nothing_else_reads
from diagnose.source.tree.memo import per_source
from diagnose.source.tree.outline import called_name
from diagnose.source.tree.syntax import Source

_PRODUCTS = frozenset({"mul", "multiply", "div", "divide", "true_divide"})
_RENAMED = _PRODUCTS | {"sigmoid"}
"""What an import may give another name."""
_CUBE = 0.044715
_CLOSE = 2.0**-23
"""Relative: one float32 rounding, which the rounding gate grants (`diagnose/trial/gates/numerics.py`).

Eight digits are that close. With 0.7071 for √½ a program computes another function, off by 1e-5: a hundred times what
the three roundings of the gate allow, and what a model that was trained with it does not expect.
"""


@dataclass
class WrittenActivation:
    """`root` computes `kind` (`tanh`, `erf`: of GELU; `silu`) of `input`."""

    source: Source
    root: cst.BaseExpression
    kind: str = ""
    input: cst.BaseExpression | None = None
    steps: list[tuple[cst.CSTNode, str]] = field(default_factory=list)


class _NotOne(Exception):
    """The expression is no such activation."""


def may_hold_activations(source: Source) -> bool:
    """Whether a file may hold one: it names `tanh` or `erf`, or multiplies something by the sigmoid of the same."""
    if source.may_name("tanh", "tanh_", "erf", "erf_"):
        return True
    sigmoids = [each for each in source.outline.every(ast.Call) if called_name(each) in {"sigmoid", "sigmoid_"}]
    taken = {_written_as(each) for call in sigmoids for each in _inputs(call)}
    return bool(source.imported_as(*_RENAMED) - _RENAMED) or not taken.isdisjoint(_multiplied(source))


@per_source
def _multiplied(source: Source) -> frozenset[str]:
    """Return what stands in products and quotients of a file, as Python's own parser has it."""
    found: list[ast.expr] = []
    for product in source.outline.every(ast.BinOp):
        found += [product.left, product.right] if isinstance(product.op, ast.Mult | ast.Div) else []
    for update in source.outline.every(ast.AugAssign):
        found += [update.target, update.value] if isinstance(update.op, ast.Mult | ast.Div) else []
    for call in source.outline.every(ast.Call):
        if called_name(call).removesuffix("_") in _PRODUCTS:
            found += _inputs(call)
    return frozenset(map(_written_as, found))


def _written_as(node: ast.expr) -> str:
    """Return an expression's tree as text, equal where it is read and where it is updated."""
    return ast.dump(node).replace("ctx=Store()", "ctx=Load()")


def _inputs(call: ast.Call) -> list[ast.expr]:
    """Return what a function is called with, and the object that a method is called on."""
    of = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return [*of, *call.args, *(each.value for each in call.keywords)]


def written_activations(source: Source) -> Iterator[WrittenActivation]:
    """Yield the activations that a file writes out, the widest expression of each."""
    done: list[tuple[int, int]] = []
    for node in source.walk(None, cst.BinaryOperation, cst.Call):
        if not isinstance(node, cst.BinaryOperation | cst.Call):
            continue
        start, end = source.span(node)
        if any(first <= start and end <= last for first, last in done):
            continue
        found = WrittenActivation(source, node)
        try:
            _read(found, node)
        except _NotOne:
            continue
        assert found.input is not None
        at = statement_of(source, node)
        if same_value(source, found.input, at) and nothing_else_reads(source, node, found.steps):
            done.append((start, end))
            yield found


def _factors(found: WrittenActivation, node: cst.BaseExpression) -> tuple[float, list[cst.BaseExpression]]:
    """A product as its constant and its other factors."""
    value = constant(found.source, node)
    if value is not None:
        return value, []
    made = certain(found.source, node)
    if made is None or len(made.operands) != 2 or made.name not in {"mul", "div"}:
        return 1.0, [node]
    if not is_of_tensors(found.source, made):
        raise _NotOne
    found.steps += made.through
    left, factors = _factors(found, made.operands[0])
    right, others = _factors(found, made.operands[1])
    if made.name == "mul":
        return left * right, [*factors, *others]
    if others or not right:
        raise _NotOne
    return left / right, factors


def _read(found: WrittenActivation, node: cst.BaseExpression) -> None:
    coefficient, factors = _factors(found, node)
    if len(factors) != 2:
        raise _NotOne
    for value, gate in (factors, factors[::-1]):
        before = len(found.steps)
        try:
            found.input = value
            _gate(found, coefficient, gate)
            return
        except _NotOne:
            del found.steps[before:]
    raise _NotOne


def _gate(found: WrittenActivation, coefficient: float, node: cst.BaseExpression) -> None:
    made = _operation(found, node)
    if made.name == "sigmoid" and _close(coefficient, 1):
        found.kind = "silu"
        _is_input(found, made.operands[0])
        return
    if made.name != "add" or not _close(coefficient, 0.5):
        raise _NotOne
    inner_made = _operation(found, _beside_one(found, made))
    if inner_made.name == "erf":
        found.kind = "erf"
        scale, factors = _factors(found, inner_made.operands[0])
        if not _close(scale, math.sqrt(0.5)) or len(factors) != 1:
            raise _NotOne
        _is_input(found, factors[0])
    elif inner_made.name == "tanh":
        found.kind = "tanh"
        scale, factors = _factors(found, inner_made.operands[0])
        if not _close(scale, math.sqrt(2 / math.pi)):
            raise _NotOne
        _cubic(found, factors)
    else:
        raise _NotOne


def _cubic(found: WrittenActivation, factors: list[cst.BaseExpression]) -> None:
    """x + 0.044715·x³, or x·(1 + 0.044715·x²)."""
    power = 3
    if len(factors) == 2:
        first, second = factors
        if _is_same(found, second):
            first, second = second, first
        _is_input(found, first)
        factors, power = [second], 2
    if len(factors) != 1:
        raise _NotOne
    made = _operation(found, factors[0])
    if made.name != "add" or len(made.operands) != 2:
        raise _NotOne
    for plain, raised in (made.operands, tuple(reversed(made.operands))):
        scale, rest = _factors(found, raised)
        plain_fits = _is_same(found, plain) if power == 3 else _close(constant(found.source, plain) or 0.0, 1)
        if plain_fits and _close(scale, _CUBE) and _power(found, rest) == power:
            return
    raise _NotOne


def _power(found: WrittenActivation, factors: list[cst.BaseExpression]) -> int:
    total = 0
    for factor in factors:
        if _is_same(found, factor):
            total += 1
            continue
        made = _operation(found, factor)
        exponent = (
            constant(found.source, made.operands[1]) if made.name == "pow" else 2 if made.name == "square" else None
        )
        if exponent not in {2, 3} or not _is_same(found, made.operands[0]):
            raise _NotOne
        total += int(exponent)
    return total


def _beside_one(found: WrittenActivation, made: Operation) -> cst.BaseExpression:
    """Return what 1 is added to."""
    if len(made.operands) == 2:
        for one, other in (made.operands, made.operands[::-1]):
            value = constant(found.source, one)
            if value is not None and _close(value, 1):
                return other
    raise _NotOne


def _operation(found: WrittenActivation, node: cst.BaseExpression) -> Operation:
    made = certain(found.source, node)
    if made is None or not made.operands or not is_of_tensors(found.source, made):
        raise _NotOne
    found.steps += made.through
    return made


def _is_input(found: WrittenActivation, node: cst.BaseExpression) -> None:
    if not _is_same(found, node):
        raise _NotOne


def _is_same(found: WrittenActivation, node: cst.BaseExpression) -> bool:
    """Whether an expression is the activation's input: the same text with the same meaning, and no call."""
    source, other = found.source, found.input
    if other is None or any(source.every(cst.Call, node)) or source.code(node) != source.code(other):
        return False
    return see_the_same(source, node, other)


def _close(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= _CLOSE * abs(wanted)
