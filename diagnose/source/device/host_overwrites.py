"""Whether the host may write to a tensor while it is copied to the device without a wait."""

from __future__ import annotations

import re

import libcst as cst

from diagnose.source.dataflow.mutations import written_in_place
from diagnose.source.device.transfers import Transfer, viewed

_PINS = re.compile(
    r"\btorch\.(?:empty|zeros|ones|full|rand|randn)\w*\([^\n]*(?:\bpin_memory\s*=\s*True|\)\.pin_memory\(\))"
)
"""How a program pins buffers of its own, which a generator may fill again while it hands one out."""


def is_overwritten(transfer: Transfer) -> bool:
    """Whether the host may write to what is copied while it is: behind the copy, or in a buffer that the file pins."""
    source, codes = transfer.source, {transfer.source.code(each) for each in (transfer.moved, viewed(transfer.moved))}
    if _PINS.search(source.text) and re.search(r"\byield\b", source.text):
        return True
    statement = source.statement(transfer.call)
    if statement is None or any(
        source.code(each.target) in codes for each in source.every(cst.AssignTarget, statement)
    ):
        return False  # from here on the name is the copy's
    function = source.inside(transfer.call, cst.FunctionDef)
    return any(
        source.code(written) in codes
        and source.span(written)[0] > source.span(transfer.call)[1]
        and source.inside(written, cst.FunctionDef) is function
        for written in written_in_place(source)
    )
