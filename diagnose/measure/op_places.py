"""The lines of source that some operators belong to, the forward operator's where one runs in a backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diagnose.model import Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

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
    ahead, behind = _forward(measures, rows)
    known = np.unique(np.where(behind, ahead, rows))
    # What only runs in backward passes belongs to the line that runs them, for want of a better one.
    known = known[known != MISSING]
    rows = known if len(known) else rows
    spans = Intervals.of(table.start_ns[rows], table.end_ns[rows]).joined(_BETWEEN_NS)
    every = max(len(spans) // _MOST, 1)
    return Intervals(spans.starts[::every], spans.ends[::every])


def _forward(measures: Measures, rows: Int64) -> tuple[Int64, Bool]:
    """Per operator, the forward operator that it, or what is around it, differentiates; and whether it differentiates."""
    tree = measures.op_tree
    found, behind, above = tree.forward[rows], tree.backward[rows], rows
    for _ in range(len(tree.levels)):
        open_ = (found == MISSING) & (above != MISSING)
        if not open_.any():
            break
        above = np.where(open_, tree.nesting.parent[above], above)
        known = open_ & (above != MISSING)
        found = np.where(known, tree.forward[above], found)
        behind = behind | (known & tree.backward[above])
    return np.asarray(found, np.int64), np.asarray(behind | (found != MISSING), np.bool_)
