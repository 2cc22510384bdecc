"""Operators that bring a value to the host, or the size of a result that depends on values: they end in a wait.

    value_reads(trace, tree, waits)     # the host's time in them

Without the wait, none of what such an operator does on the host is left: `.item()` becomes a tensor that stays where it
is, a mask multiplies instead of choosing.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool

_READS = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|nonzero_numpy|equal)$")
_DEEPEST = 4
"""`aten::is_nonzero` calls `aten::item`, which calls `aten::_local_scalar_dense`: more do not lie in each other."""


def value_reads(trace: Trace, tree: OpTree, waits: Bool) -> Intervals:
    """The time of the outermost such operators around calls that wait (a mask over `trace.calls`)."""
    if len(trace.ops) == 0 or not waits.any():
        return Intervals.empty()
    reads = named(trace.names, trace.ops.name, _READS)
    at = tree.of_call[waits]
    at = np.unique(at[at != MISSING])
    at = at[reads[at]]
    for _ in range(_DEEPEST):
        above = tree.nesting.parent[at]
        at = np.where((above != MISSING) & reads[above], above, at)
    return Intervals.of(trace.ops.start_ns[at], trace.ops.end_ns[at])
