"""Conditions that tell a run on an accelerator from one on the CPU."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.tree.syntax import Source

_SAYS_CUDA = re.compile(
    r"""^(.+\.)?((use_)?(cuda|accel)|use_gpu)$|(cuda|accelerator)\.is_available\(\)$|(==|^|\bin\b)\s*["']cuda["']|startswith\(["']cuda""",
    re.IGNORECASE,
)
_SAYS_CPU = re.compile(r"""(==\s*["']cpu["']|!=\s*["']cuda["'])$""")


def asks_for_accelerator(source: Source, test: cst.BaseExpression) -> bool | None:
    """Whether a condition holds on an accelerator only (True) or without one only (False); None: it does not tell."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        inner = asks_for_accelerator(source, test.expression)
        return None if inner is None else not inner
    if isinstance(test, cst.BooleanOperation):
        return None
    code = source.code(test)
    return True if _SAYS_CUDA.search(code) else False if _SAYS_CPU.search(code) else None
