"""Whether the host may write to a tensor while it is copied to the device without a wait."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.dataflow.bindings import binding_of
from diagnose.source.dataflow.mutations import MEMORY_ATTRIBUTES, VIEW_METHODS, written_in_place
from diagnose.source.device.transfers import Transfer, viewed_tensor
from diagnose.source.tree.literals import string_key
from diagnose.source.tree.syntax import Source

_PINS = re.compile(
    r"\btorch\.(?:empty|zeros|ones|full|rand|randn)\w*\([^\n]*(?:\bpin_memory\s*=\s*True|\)\.pin_memory\(\))"
)
"""How a program pins buffers of its own, which a generator may fill again while it hands one out."""
_SHARES = frozenset({"torch.from_numpy", "torch.as_tensor", "torch.asarray", "numpy.asarray", "numpy.frombuffer"})
"""Functions whose results lie in the memory of what they are given, or may."""


def is_overwritten(transfer: Transfer) -> bool:
    """Whether the host may write to what is copied while it is: behind the copy, or in a buffer that the file pins."""
    source = transfer.source
    codes = {source.code(each) for each in (transfer.moved, viewed_tensor(transfer.moved))}
    if _PINS.search(source.text) and re.search(r"\byield\b", source.text):
        return True
    statement = source.statement(transfer.call)
    if statement is None or any(
        source.code(each.target) in codes for each in source.every(cst.AssignTarget, statement)
    ):
        return False  # from here on the name is the copy's
    function = source.inside(transfer.call, cst.FunctionDef)
    memory = _memory_of(source, transfer.moved)
    return any(
        not memory.isdisjoint(_memory_of(source, written))
        and source.span(written)[0] > source.span(transfer.call)[1]
        and source.inside(written, cst.FunctionDef) is function
        for written in written_in_place(source)
    )


def _memory_of(source: Source, expression: cst.BaseExpression) -> set[str]:
    """The code of an expression and of all that it may be a view of: `v`, `x` of `v` behind `v = x.view(-1, 4)`."""
    found: set[str] = set()
    below: cst.BaseExpression | None = expression
    while below is not None and source.code(below) not in found:
        found.add(source.code(below))
        if isinstance(below, cst.Call):
            below = _shared_by(source, below)
        elif isinstance(below, cst.Subscript):
            # An entry of a dictionary, `batch["x"]`, is an object of its own.
            below = below.value if string_key(below) is None else None
        elif isinstance(below, cst.Attribute):
            below = below.value if below.attr.value in MEMORY_ATTRIBUTES else None
        elif isinstance(below, cst.Name):
            bound = binding_of(source, below)
            below = bound.value if bound is not None else None
        else:
            below = None
    return found


def _shared_by(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return what the result of a call shares its memory with: `x` for `x.t()` and `torch.from_numpy(x)`."""
    names = source.names(call.func)
    function = any(
        name in _SHARES or (name.startswith("torch.") and name.rpartition(".")[2] in VIEW_METHODS) for name in names
    )
    if function:
        return call.args[0].value if call.args else None
    method = isinstance(call.func, cst.Attribute) and call.func.attr.value in VIEW_METHODS
    return call.func.value if isinstance(call.func, cst.Attribute) and method else None
