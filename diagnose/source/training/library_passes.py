"""Backward passes that an object of a library makes for a program: `loss_scaler(loss, optimizer, …)`.

timm's scalers of the loss are called so. Where a program makes every backward pass so, none of its own is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from diagnose.source.tree.edits import call_name
from diagnose.source.tree.syntax import Source

_SCALER = re.compile(r"scaler", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optim|(?<![a-z])opt(?![a-z])", re.IGNORECASE)


def library_passes(source: Source) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Each such call of a file, with the loss."""
    if not _SCALER.search(source.text):
        return
    for call in source.every(cst.Call):
        given = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
        hands_on = len(given) > 1 and isinstance(given[0], cst.Name) and isinstance(call.func, cst.Name)
        if hands_on and _SCALER.search(call_name(call)) and _OPTIMIZER.search(source.code(given[1])):
            yield call, given[0]
