"""Literals of a source: what value one has, and how a value is written beside it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from diagnose.model import Scalar


@dataclass(frozen=True, slots=True)
class Literal:
    """The value of a literal, which may be None."""

    value: Scalar


def literal(node: cst.BaseExpression) -> Literal | None:
    """The value of a number, a string, True, False or None; None for any other expression."""
    if isinstance(node, cst.Name):
        known = {"True": True, "False": False, "None": None}
        return Literal(known[node.value]) if node.value in known else None
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        inner = literal(node.expression)
        value = inner.value if inner is not None else None
        return Literal(-value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, cst.SimpleString):
        found = node.evaluated_value
        return Literal(found) if isinstance(found, str) else None
    if isinstance(node, cst.Integer | cst.Float):
        return Literal(ast.literal_eval(node.value))
    return None


def number(node: cst.BaseExpression) -> int | None:
    """The value of an integer literal."""
    found = literal(node)
    value = found.value if found is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def string(node: cst.BaseExpression) -> str | None:
    """The value of a string literal."""
    found = literal(node)
    return found.value if found is not None and isinstance(found.value, str) else None


def python_literal(value: Scalar, old: str = "") -> str:
    """Python code for a value, in the quotes of the code that it takes the place of."""
    if not isinstance(value, str):
        return repr(value)
    code = repr(value)
    if old.endswith("'") or '"' in value:
        return code
    return f'"{code[1:-1]}"' if code.startswith("'") else code


def string_key(node: cst.Subscript) -> str | None:
    """The text by which an entry is looked up, `rows["name"]`; None for other subscripts."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return string(index.value) if isinstance(index, cst.Index) else None
