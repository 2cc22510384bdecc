"""Whether an expression is the size of a tensor's last axis: `x.size(-1)`, the last name of `B, T, V = x.shape`."""

from __future__ import annotations

import re
from collections.abc import Collection

import libcst as cst

from diagnose.source.dataflow.reaching_definitions import (
    Bound,
    definition_of,
    names_of_row,
    statement_of,
    unchanged_until,
)
from diagnose.source.tree.syntax import Source


def is_last_size(source: Source, size: cst.BaseExpression, names: Collection[str]) -> bool | None:
    """Whether an expression is the size of the last axis of a tensor that has these names; None where neither is seen,
    as for a number or an option.
    """
    code = source.code(size)
    if any(code in {f"{name}.size(-1)", f"{name}.shape[-1]", f"{name}.size(2)", f"{name}.shape[2]"} for name in names):
        return True
    if not isinstance(size, cst.Name):
        return None
    found = definition_of(source, size)
    written = isinstance(found.value, cst.Tuple)  # `vocab, width = 50257, 768` is as good as two lines
    if found.bound is not Bound.UNPACKED or not isinstance(found.value, cst.BaseExpression) or written:
        return None
    if not unchanged_until(source, found.value, statement_of(source, size)):
        return None  # the tensor of that name had other axes by then
    shaped = re.fullmatch(r"(\w+)\.(?:shape|size\(\))", source.code(found.value))
    return shaped is not None and shaped[1] in names and names_of_row(found.statement)[-1:] == [size.value]
