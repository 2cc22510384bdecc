"""A normalisation that a program writes out, and which files may hold one."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import libcst as cst

from diagnose.source.patterns.formula import Operation
from diagnose.source.tree.syntax import Source


@dataclass
class WrittenNorm:
    """A normalisation over the last axis; `root` is the expression to be replaced."""

    source: Source
    root: cst.BaseExpression
    kind: str
    """`rms` or `layer`."""
    input: cst.BaseExpression | None = None
    eps: cst.BaseExpression | None = None
    weight: cst.BaseExpression | None = None
    bias: cst.BaseExpression | None = None
    method: cst.FunctionDef | None = None
    """The method that the core stands in."""
    steps: list[tuple[cst.CSTNode, str]] = field(default_factory=list)
    widened: str = ""
    """`float` where the input is made float32 and what comes out stays that."""
    casts: list[Operation] = field(default_factory=list)
    """Changes of the input's format."""
    casts_back: list[Operation] = field(default_factory=list)
    """Changes of the format of what comes out."""


def may_hold_norms(source: Source) -> bool:
    """Whether a file has what every normalisation has: a call over the last axis alone, which keeps that axis."""
    return any(_may_keep_last(call) for call in source.outline.every(ast.Call))


def _may_keep_last(call: ast.Call) -> bool:
    given = [*call.args, *(each.value for each in call.keywords)]
    if not any(isinstance(each, ast.Constant) and each.value is True for each in given):
        return False
    axes = [each.elts[0] if isinstance(each, ast.Tuple | ast.List) and each.elts else each for each in given]
    return any(isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.USub) for each in axes)
