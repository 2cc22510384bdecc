"""Sums of factors times tensors, as moving averages write them: `decay * old + (1 - decay) * new`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

import libcst as cst

from diagnose.source.dataflow.purity import only_computes
from diagnose.source.tree.syntax import Source

_PLAIN = re.compile(r"\.data\b|\.detach\(\)|\s")


@dataclass(frozen=True)
class Term:
    """A factor times one tensor."""

    tensor: str
    factor: str


def may_hold_weighted_sum(node: ast.AST) -> bool:
    """Whether a sum of two products is in it, as Python's own parser has it."""
    sums = (each for each in ast.walk(node) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add))
    sides = ((each.left, each.right) for each in sums)
    return any(all(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in pair) for pair in sides)


def weighted_sum(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> list[Term] | None:
    """The two terms of a sum of products; None for another expression. `meanings` are the loop's names of tensors."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Add):
        return None
    terms = [product(source, side, meanings) for side in (node.left, node.right)]
    return [term for term in terms if term is not None] if None not in terms else None


def product(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> Term | None:
    """`p * w` or `w * p`: the tensor is the side that is one of the loop's, or a part of something by such a name."""
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
        return None
    sides = [(node.left, node.right), (node.right, node.left)]
    sides.sort(key=lambda pair: plain(source.code(pair[0])) not in meanings)  # a known tensor before any other name
    for tensor, factor in sides:
        code = source.code(tensor)
        held = plain(code) in meanings or ".data" in code or ".detach()" in code or isinstance(tensor, cst.Name)
        number = isinstance(tensor, cst.Float | cst.Integer | cst.BinaryOperation)
        if held and not number and is_factor(source, factor, meanings):
            return Term(tensor_of(source, tensor, meanings), bare(source.code(factor)))
    return None


def is_factor(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> bool:
    """Whether an expression may be a number: it holds no tensor of the loop's, and calls nothing that does more."""
    code = source.code(node)
    return (
        ".data" not in code
        and not any(name.value in meanings for name in source.every(cst.Name, node))
        and only_computes(source, node, {})
    )


def tensor_of(source: Source, node: cst.BaseExpression, meanings: dict[str, str]) -> str:
    """The code by which a tensor is known, whatever its other names."""
    return meant(plain(source.code(node)), meanings)


def plain(code: str) -> str:
    """A tensor's code without `.data` and `.detach()`, which are the same values."""
    return _PLAIN.sub("", code)


def meant(code: str, meanings: dict[str, str]) -> str:
    """Return what a name of the loop stands for."""
    return meanings.get(code, code)


def bare(code: str) -> str:
    """Without parentheses around all of it."""
    code = code.strip()
    while code.startswith("(") and code.endswith(")") and "(" not in code[1:-1]:
        code = code[1:-1].strip()
    return code


def sum_to_one(old: str, new: str) -> bool:
    """Whether two factors sum to one."""
    if _rest_of_one(old) == new or _rest_of_one(new) == old:
        return True
    try:
        return abs(float(old) + float(new) - 1) < 1e-12
    except ValueError:
        return False


def _rest_of_one(code: str) -> str | None:
    """`x` of `1 - x`."""
    node = cst.parse_expression(code)
    if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Subtract):
        return None
    one = isinstance(node.left, cst.Integer | cst.Float) and node.left.evaluated_value == 1
    return bare(cst.Module([]).code_for_node(node.right)) if one else None
