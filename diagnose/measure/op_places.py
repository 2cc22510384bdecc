"""The lines of source that some operators belong to, the forward operator's where one runs in a backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diagnose.model import Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int64

if TYPE_CHECKING:
    from diagnose.measure import Measures

_MOST = 512  # stretches looked up: they repeat from layer to layer and step to step
_BETWEEN_NS = 30_000  # the Python between two operators of one expression belongs to it


def places_of_ops(measures: Measures, ops: Int64) -> tuple[Place, ...]:
    """The lines that operators (rows of `trace.ops`, -1 is left out) were called from, the biggest share first."""
    spans = op_spans(measures, ops)
    return measures.places(spans) if len(spans) else ()


def op_spans(measures: Measures, ops: Int64) -> Intervals:
    """When the host was in some operators, or in the forward operators that they differentiate."""
    tree, table = measures.op_tree, measures.trace.ops
    rows = np.unique(ops[ops != MISSING])
    if not len(rows):
        return Intervals.empty()
    rows = np.unique(np.where(tree.backward[rows], _forward(measures, rows), rows))
    rows = rows[rows != MISSING]
    spans = Intervals.of(table.start_ns[rows], table.end_ns[rows]).joined(_BETWEEN_NS)
    every = max(len(spans) // _MOST, 1)
    return Intervals(spans.starts[::every], spans.ends[::every])


def _forward(measures: Measures, rows: Int64) -> Int64:
    """Per operator of a backward pass the forward operator that it, or what is around it, differentiates."""
    tree = measures.op_tree
    found = tree.forward[rows]
    above = rows
    for _ in range(len(tree.levels)):
        open_ = (found == MISSING) & (above != MISSING)
        if not open_.any():
            break
        above = np.where(open_, tree.nesting.parent[above], above)
        found = np.where(open_ & (above != MISSING), tree.forward[above], found)
    return np.asarray(found, np.int64)
