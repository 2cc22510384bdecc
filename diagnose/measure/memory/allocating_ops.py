"""Which operator asked for a piece of memory, where a recording has operators and no stacks of the allocator's own.

    ops = AllocatingOps(measures)
    rows = ops.at(time_ns)          # rows of trace.ops: what the program or autograd called, -1 for none
    ops.names(rows)                 # the modules around it, or the operator

Events of the allocator do not say on which thread they happened. Of the operators that run at that moment, the one that
began last is taken.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.lines.host_side import HostSide
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.views.names import named
from diagnose.model import Place
from diagnose.trace.schema import MISSING, Int64

_ENGINE = re.compile(r"^autograd::engine::")


class AllocatingOps:
    """The operators of one rank, by the moments at which memory was asked for."""

    def __init__(self, measures: HostSide) -> None:
        self._measures = measures
        self._ops = measures.trace.ops
        self._tree = measures.op_tree

    def at(self, time_ns: Int64) -> Int64:
        """Per moment the outermost operator, below autograd's engine, around the one that began last; -1 for none."""
        found = np.full(len(time_ns), MISSING, np.int64)
        begun = np.full(len(time_ns), np.iinfo(np.int64).min)
        for thread in np.unique(self._ops.thread).tolist():
            rows = self._tree.nesting.innermost(np.full(len(time_ns), thread), time_ns)
            start = np.where(rows != MISSING, self._ops.start_ns[rows], begun)
            found = np.where(start > begun, rows, found)
            begun = np.maximum(begun, start)
        return self._outermost(found)

    def _outermost(self, rows: Int64) -> Int64:
        parent = self._tree.nesting.parent
        engine = np.append(named(self._measures.trace.names, self._ops.name, _ENGINE), True)
        for _ in range(len(self._tree.levels)):
            above = np.where(rows != MISSING, parent[rows], MISSING)
            rows = np.where(engine[above], rows, above)  # -1 is the last entry
        return rows

    def names(self, rows: Int64) -> list[str | None]:
        """Per operator the modules around it, where they are recorded, and its own name; None for none."""
        texts: dict[int, str | None] = {MISSING: None}
        for row in np.unique(rows[rows != MISSING]).tolist():
            name = self._measures.trace.names[self._ops.name[row]]
            path = self._tree.module_path(row) if len(self._measures.trace.frames) else ()
            texts[row] = f"{'.'.join(path)}: {name}" if path else name
        return [texts[row] for row in rows.tolist()]

    def place(self, rows: Int64) -> Place | None:
        """The line of the program that most of these operators come from."""
        return next(iter(places_of_ops(self._measures, rows)), None)
