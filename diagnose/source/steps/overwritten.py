"""Whether the host may write to a tensor while it is copied to the device without a wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.source.steps.transfers import Transfer
from diagnose.source.syntax import Source

__all__ = ["is_overwritten"]

_PINS = re.compile(
    r"\btorch\.(?:empty|zeros|ones|full|rand|randn)\w*\([^\n]*(?:\bpin_memory\s*=\s*True|\)\.pin_memory\(\))"
)
"""How a program pins buffers of its own, which a generator may fill again while it hands one out."""


def is_overwritten(transfer: Transfer) -> bool:
    """Whether the host may write to what is copied while it is: behind the copy, or in a buffer that the file pins."""
    source, code = transfer.source, transfer.source.code(transfer.moved)
    if _PINS.search(source.text) and re.search(r"\byield\b", source.text):
        return True
    statement = source.statement(transfer.call)
    if statement is None or any(source.code(each.target) == code for each in source.every(cst.AssignTarget, statement)):
        return False  # from here on the name is the copy's
    function = source.inside(transfer.call, cst.FunctionDef)
    return any(
        source.code(written) == code
        and source.span(written)[0] > source.span(transfer.call)[1]
        and source.inside(written, cst.FunctionDef) is function
        for written in _written(source)
    )


def _written(source: Source) -> Iterator[cst.BaseExpression]:
    """What is written in place: `x.add_(1)`, `x[0] = 1`, `x += 1`."""
    for call in source.every(cst.Call):
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if isinstance(call.func, cst.Attribute) and method.endswith("_") and not method.endswith("__"):
            yield call.func.value
    for assign in source.every(cst.AssignTarget):
        if isinstance(assign.target, cst.Subscript):
            yield assign.target.value
    for update in source.every(cst.AugAssign):
        yield update.target.value if isinstance(update.target, cst.Subscript) else update.target
