"""Where work comes from: the modules and the line of the operators that launched it."""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.model import Place
from diagnose.trace.schema import MISSING, Int64

_LOOKED_AT = 64
"""Operators of one row of a table whose lines are looked up: they repeat from step to step."""


def module_of(measures: Measures, ops: Int64, weights: Int64) -> str | None:
    """The innermost module, with all around it, in which most of some operators' time passed; None where unknown."""
    tree = measures.op_tree
    known = ops != MISSING
    if not len(tree.modules) or not known.any():
        return None
    place = tree.module[ops[known]]
    inside = place != MISSING
    if not inside.any():
        return None
    weight = np.bincount(place[inside], weights[known][inside])
    most = ops[known][inside][place[inside] == weight.argmax()][0]
    return ".".join(tree.module_path(int(most))) or None


def place_of(measures: Measures, ops: Int64) -> Place | None:
    """The line that called most of some operators; None where nothing tells."""
    rows = np.unique(ops[ops != MISSING])
    if not len(rows):
        return None
    every = max(len(rows) // _LOOKED_AT, 1)
    return next(iter(places_of_ops(measures, rows[::every])), None)
