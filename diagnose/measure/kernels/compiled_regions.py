"""The functions that torch.compile compiled, as a recording shows them, and the host time that splitting them costs.

    compiled = compiled_regions(trace, tree)
    compiled.resumed         # per region, whether it continues one that was split
    compiled.between         # host time between the graphs of one function, and in calling the further ones

Dynamo marks each call of compiled bytecode (`Torch-Compiled Region: 3/0`). Where it had to break a graph, the bytecode
calls a function that continues after the break, whose region then lies inside the first one:

    Torch-Compiled Region: 0/0  |-----------------------------------------------|
    graph (CompiledFunction)       |==[kernels]==|
    Torch-Compiled Region: 1/0                    break, guards, |--------------|
    graph                                                          |==[kernels]=|
    between                                   |-----------------------|

What a graph does before it issues its first operator and after its last one, each graph does for itself; in one graph
it is done once. The backward pass calls the graphs one by one as well.

A region inside a graph is something else: compiled code that a custom operator calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.views.host_activity import threads_in
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

_REGION = re.compile(r"^Torch-Compiled Region")
_GRAPH = re.compile(r"^CompiledFunction$")
_BACKWARD = re.compile(r"^CompiledFunctionBackward$")
_CODE = re.compile(r"^## Call CompiledFxGraph")
_OWN = re.compile(
    r"^(Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph|Pregraph bytecode|AOTDispatcher|TorchDynamo"
    r"|autograd::engine::|ProfilerStep#|Optimizer\.)"
)
"""Operators that call graphs, or prepare it, and are not part of what a graph computes."""
_DEEPEST = 64
"""Breaks in one function that are followed; each lies inside the one before."""


@dataclass(frozen=True, eq=False)
class CompiledRegions:
    """Calls of compiled functions, in order."""

    rows: Int64
    """Rows of `trace.ops`."""
    resumed: Bool
    """Per region, whether it continues a function after a break."""
    split: Intervals
    """Host time in the functions that are split, and in their backward passes."""
    between: Intervals
    """The part of it that would go if no function were split."""


def compiled_regions(trace: Trace, tree: OpTree) -> CompiledRegions:
    """Calls of compiled functions and what their breaks cost; empty where none are recorded."""
    ops = trace.ops
    region = named(trace.names, ops.name, _REGION)
    rows = np.flatnonzero(region)
    if len(rows) == 0:
        return CompiledRegions(rows, np.empty(0, np.bool_), Intervals.empty(), Intervals.empty())
    graphs = _graphs(trace)
    within = _inside(graphs, ops.thread[rows], ops.start_ns[rows])
    around = np.where(within, MISSING, _nearest(tree, tree.nesting.parent[rows], region))
    resumed = around != MISSING
    first = np.setdiff1d(around[resumed], rows[resumed])
    issuing = _issuing(trace, tree)
    forward = _between(graphs, issuing, trace, first)
    whole, backward = _backward(trace, tree, issuing, region, np.union1d(first, rows[resumed]), rows[resumed])
    called = Intervals.of_rows(ops, first)
    return CompiledRegions(rows, resumed, called | whole, forward | backward)


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
    """Per thread, the time in compiled graphs of a forward pass: autograd's functions, else what inductor marks."""
    ops, ranges = trace.ops, trace.ranges
    function, code = named(trace.names, ops.name, _GRAPH), named(trace.names, ranges.name, _CODE)
    called = named(trace.names, ops.name, _CODE)
    found = {}
    for thread in threads_in(ops.thread):
        one, other, marked = function & (ops.thread == thread), called & (ops.thread == thread), code.copy()
        marked &= ranges.thread == thread
        if one.any() or not marked.any():
            chosen = one if one.any() else other
            found[thread] = Intervals.of_rows(ops, chosen)
        else:
            found[thread] = Intervals.of_rows(ranges, marked)
    return found


def _issuing(trace: Trace, tree: OpTree) -> Intervals:
    """Return the stretches from the first operator that each graph issues to the end of its last one."""
    ops = trace.ops
    order = tree.nesting.order
    computes = order[~named(trace.names, ops.name, _OWN)[order]]
    graphs = np.flatnonzero(named(trace.names, ops.name, _GRAPH) | named(trace.names, ops.name, _BACKWARD))
    parts = []
    for thread in threads_in(ops.thread):
        mine, graph = computes[ops.thread[computes] == thread], graphs[ops.thread[graphs] == thread]
        low = np.searchsorted(ops.start_ns[mine], ops.start_ns[graph], side="left")
        high = np.searchsorted(ops.start_ns[mine], ops.end_ns[graph], side="left")
        low, high = low[high > low], high[high > low]
        if len(low):
            ends = np.append(ops.end_ns[mine], 0)  # every second reduction is of what lies between two graphs
            last = np.maximum.reduceat(ends, np.stack((low, high), axis=1).ravel())[::2]
            parts.append(Intervals.of(ops.start_ns[mine][low], last))
    return Intervals.union(parts)


def _inside(graphs: dict[int, Intervals], thread: np.typing.NDArray[np.int32], time_ns: Int64) -> Bool:
    result = np.zeros(len(time_ns), np.bool_)
    for one, times in graphs.items():
        mine = thread == one
        result[mine] = times.contains(time_ns[mine])
    return result


def _between(graphs: dict[int, Intervals], issuing: Intervals, trace: Trace, split: Int64) -> Intervals:
    """Return the stretches from the first graph of each split function to its last one, without what the graphs
    issue."""
    parts = []
    for thread, times in graphs.items():
        mine = split[trace.ops.thread[split] == thread]
        low = np.searchsorted(times.starts, trace.ops.start_ns[mine], side="left")
        high = np.searchsorted(times.starts, trace.ops.end_ns[mine], side="left") - 1
        low, high = low[high > low], high[high > low]
        issued = times & issuing
        # Where a graph's operators are not recorded, all of it counts as issued.
        unknown = issued.covered(times.starts, times.ends) == 0
        issued = issued | Intervals.of(times.starts[unknown], times.ends[unknown])
        begin = issued.ends[np.searchsorted(issued.starts, times.ends[low], side="left") - 1]
        end = issued.starts[np.searchsorted(issued.ends, times.starts[high], side="right")]
        parts.append(Intervals.of(begin, end) - issued)
    return Intervals.union(parts)


def _backward(
    trace: Trace, tree: OpTree, issuing: Intervals, region: Bool, all_parts: Int64, resumed: Int64
) -> tuple[Intervals, Intervals]:
    """The backward passes of split functions, and of them what calling the further graphs costs besides issuing."""
    ops = trace.ops
    rows = np.flatnonzero(named(trace.names, ops.name, _BACKWARD))
    of = _nearest(tree, tree.forward[rows], region)
    rows, of = rows[np.isin(of, all_parts)], of[np.isin(of, all_parts)]
    around = np.where(tree.nesting.parent[rows] == MISSING, rows, tree.nesting.parent[rows])
    whole = Intervals.of_rows(ops, around)
    further = np.isin(of, resumed)
    known = issuing.covered(ops.start_ns[rows], ops.end_ns[rows]) > 0
    costs = around[further & known]
    return whole, Intervals.of_rows(ops, costs) - issuing
