"""The functions that torch.compile compiled, as a recording shows them, and the host time that splitting them costs.

    compiled = compiled_regions(trace, tree)
    compiled.resumed         # per region, whether it continues one that was split
    compiled.between         # host time between the graphs of one function, and in calling the further ones

Dynamo marks each call of compiled bytecode (`Torch-Compiled Region: 3/0`). Where it had to break a graph, the bytecode
calls a function that continues after the break, whose region then lies inside the first one:

    Torch-Compiled Region: 0/0  |-----------------------------------------------|
    graph (CompiledFunction)        |=========|
    Torch-Compiled Region: 1/0                   break, guards, |---------------|
    graph                                                           |=======|
    between                                   |---------------------|

A region inside a graph is something else: compiled code that a custom operator calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.activity import threads_in
from diagnose.measure.named import named
from diagnose.measure.optree import OpTree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

_REGION = re.compile(r"^Torch-Compiled Region")
_GRAPH = re.compile(r"^CompiledFunction$")
_BACKWARD = re.compile(r"^CompiledFunctionBackward$")
_CODE = re.compile(r"^## Call CompiledFxGraph")
_DEEPEST = 64
"""Breaks in one function that are followed; each lies inside the one before."""


@dataclass(frozen=True, eq=False)
class CompiledRegions:
    """Calls of compiled functions, in order."""

    rows: Int64
    """Rows of `trace.ops`."""
    resumed: Bool
    """Per region, whether it continues a function after a break."""
    between: Intervals
    """Host time that would go if no function were split."""


def compiled_regions(trace: Trace, tree: OpTree) -> CompiledRegions:
    """Calls of compiled functions and what their breaks cost; empty where none are recorded."""
    ops = trace.ops
    region = named(trace.names, ops.name, _REGION)
    rows = np.flatnonzero(region)
    if len(rows) == 0:
        return CompiledRegions(rows, np.empty(0, np.bool_), Intervals.empty())
    graphs = _graphs(trace)
    within = _inside(graphs, ops.thread[rows], ops.start_ns[rows])
    around = np.where(within, MISSING, _nearest(tree, tree.nesting.parent[rows], region))
    resumed = around != MISSING
    first = np.setdiff1d(around[resumed], rows[resumed])
    parts = [_between(graphs, trace, first), _backward(trace, tree, region, rows[resumed])]
    return CompiledRegions(rows, resumed, Intervals.union(parts))


def _nearest(tree: OpTree, ops: Int64, wanted: Bool) -> Int64:
    """Per operator the nearest of the wanted ones that it is or lies in; -1 for none."""
    at = ops.copy()
    for _ in range(_DEEPEST):
        climbing = np.flatnonzero((at != MISSING) & ~wanted[at])
        if len(climbing) == 0:
            return at
        at[climbing] = tree.nesting.parent[at[climbing]]
    return np.where((at != MISSING) & wanted[at], at, MISSING)


def _graphs(trace: Trace) -> dict[int, Intervals]:
    """Per thread, the time in compiled graphs: what inductor marks, else the whole of the autograd functions."""
    ops, ranges = trace.ops, trace.ranges
    code = named(trace.names, ranges.name, _CODE)
    function = named(trace.names, ops.name, _GRAPH)
    found = {}
    for thread in threads_in(ops.thread):
        marked = code & (ranges.thread == thread)
        whole = function & (ops.thread == thread)
        table, mask = (ranges, marked) if marked.any() else (ops, whole)
        found[thread] = Intervals.of(table.start_ns[mask], table.end_ns[mask])
    return found


def _inside(graphs: dict[int, Intervals], thread: np.typing.NDArray[np.int32], time_ns: Int64) -> Bool:
    result = np.zeros(len(time_ns), np.bool_)
    for one, times in graphs.items():
        mine = thread == one
        result[mine] = times.contains(time_ns[mine])
    return result


def _between(graphs: dict[int, Intervals], trace: Trace, split: Int64) -> Intervals:
    """From the first graph of each split function to its last one, without the graphs."""
    parts = []
    for thread, times in graphs.items():
        mine = split[trace.ops.thread[split] == thread]
        low = np.searchsorted(times.starts, trace.ops.start_ns[mine], side="left")
        high = np.searchsorted(times.starts, trace.ops.end_ns[mine], side="left") - 1
        several = high > low
        parts.append(Intervals.of(times.ends[low[several]], times.starts[high[several]]) - times)
    return Intervals.union(parts)


def _backward(trace: Trace, tree: OpTree, region: Bool, resumed: Int64) -> Intervals:
    """What calling the further graphs costs in the backward pass: the autograd functions without the graphs."""
    ops = trace.ops
    rows = np.flatnonzero(named(trace.names, ops.name, _BACKWARD))
    rows = rows[np.isin(_nearest(tree, tree.forward[rows], region), resumed)]
    marked = named(trace.names, trace.ranges.name, _CODE)
    if len(rows) == 0 or not marked.any():
        return Intervals.empty()
    code = Intervals.of(trace.ranges.start_ns[marked], trace.ranges.end_ns[marked])
    return Intervals.of(ops.start_ns[rows], ops.end_ns[rows]) - code
