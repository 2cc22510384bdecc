"""Forward operators that run a second time in the backward pass, because their results were not kept (checkpointing).

    again = recomputations(trace, op_tree)
    again.ops                   # the outermost operators that ran again
    again.spans                 # per thread, the time of each recomputation
    again.launched(launches)    # rows of device work that recomputations launched

Autograd numbers what it may differentiate. Within a backward operator it has nothing to number: numbered operators
there are a forward pass. It is no recomputation, but a graph of the backward pass (`create_graph=True`), where most
backward operators hold some, or where what is numbered is a formula of a derivative. Operators in a
`CheckpointFunctionBackward` run again whatever the others do; so does what a recorded call of `recompute_fn` contains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure.views.host_activity import threads_in
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

_EVALUATED = re.compile(r"^autograd::engine::evaluate_function: ")
_REENTRANT = re.compile(r"^autograd::engine::evaluate_function: \w*Checkpoint\w*Backward")
_NODES = re.compile(r"^autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
_BACKWARD_OP = re.compile(r"_backward$|Backward\d*$")
_FRAME = re.compile(r"torch/utils/checkpoint\.py\(\d+\): (recompute_fn|recompute)$")
_MOST_NODES = 0.5
"""The largest share of the backward operators that may hold numbered ones: a checkpoint recomputes in one for many."""


@dataclass(frozen=True, eq=False)
class Recomputations:
    """The work that a rank computed again."""

    ops: Int64
    """The outermost operators that ran again, rows of `trace.ops` in order."""
    forward: Int64
    """The outermost numbered operators of forward passes, rows of `trace.ops` in order."""
    spans: Mapping[int, Intervals]
    """The stretches of recomputation by thread, one each."""
    _trace: Trace

    @property
    def time(self) -> Intervals:
        """Host time of all of them."""
        return Intervals.union(self.spans.values())

    def launched(self, launches: Launches) -> Bool:
        """Per row of device work, whether a recomputation launched it."""
        found = np.zeros(len(self._trace.device), np.bool_)
        if not len(self._trace.calls):
            return found
        thread = np.where(launches.linked, self._trace.calls.thread[launches.call], MISSING)
        for one, spans in self.spans.items():
            found |= (thread == one) & spans.contains(launches.start_ns)
        return found


def recomputations(trace: Trace, tree: OpTree) -> Recomputations:
    """Return the work that ran again; empty where neither autograd's numbers nor Python calls are recorded."""
    ops = trace.ops
    none = np.empty(0, np.int64)
    if not len(ops):
        return Recomputations(none, none, {}, trace)
    node = _inherited(tree, named(trace.names, ops.name, _EVALUATED))
    numbered = (ops.sequence >= 0) & (ops.forward_thread == MISSING) & ~tree.backward
    outermost = _outermost(tree, numbered)
    inside = np.flatnonzero(outermost & (node != MISSING))
    forward = np.flatnonzero(outermost & (node == MISSING))
    again = inside[_run_again(trace, node, inside, forward)]
    spans = _spans(trace, again, node)
    framed = _framed(trace)
    for thread, times in framed.items():
        spans[thread] = spans.get(thread, Intervals.empty()) | times
        within = outermost & (ops.thread == thread) & times.contains(ops.start_ns)
        again = np.union1d(again, np.flatnonzero(within))
        forward = np.setdiff1d(forward, again)
    return Recomputations(again, forward, spans, trace)


def _inherited(tree: OpTree, chosen: Bool) -> Int64:
    """Per operator, the innermost chosen operator that it is or lies in; -1 for none."""
    result = np.where(chosen, np.arange(len(chosen)), MISSING)
    parent = tree.nesting.parent
    for rows in tree.levels[1:]:
        result[rows] = np.where(chosen[rows], rows, result[parent[rows]])
    return result


def _outermost(tree: OpTree, chosen: Bool) -> Bool:
    """The chosen operators that lie in no other but through an operator of the backward pass."""
    parent = tree.nesting.parent
    within = np.zeros(len(chosen), np.bool_)
    stops = tree.backward
    for rows in tree.levels[1:]:
        above = parent[rows]
        within[rows] = (within[above] | chosen[above]) & ~stops[rows]
    return chosen & ~within


def _run_again(trace: Trace, node: Int64, inside: Int64, forward: Int64) -> Bool:
    """Return which numbered operators of the backward pass belong to recomputations."""
    ops = trace.ops
    reentrant = named(trace.names, ops.name, _REENTRANT)[node[inside]]
    nodes = np.flatnonzero(named(trace.names, ops.name, _NODES))
    holding = np.unique(node[inside[~reentrant]])
    formulas = named(trace.names, ops.name, _BACKWARD_OP)[inside]
    if len(holding) > _MOST_NODES * len(nodes) or formulas.any():
        return np.asarray(reentrant, np.bool_)
    known = np.zeros(len(trace.names) + 1, np.bool_)
    known[ops.name[forward]] = True
    strange = np.unique(node[inside[~known[ops.name[inside]]]])
    # The derivative of an exchange is an exchange: an operator within its own derivative alone was not run again.
    others = np.unique(node[inside[~_is_own(trace, node[inside], inside)]])
    return np.asarray(reentrant | (~np.isin(node[inside], strange) & np.isin(node[inside], others)), np.bool_)


def _is_own(trace: Trace, node: Int64, inside: Int64) -> Bool:
    """Per pair, whether the backward operator `node` is the derivative of what the operator `inside` it computes."""
    names = trace.ops.name[np.stack((node, inside))]
    pairs, place = np.unique(names, axis=1, return_inverse=True)
    own = [
        _EVALUATED.sub("", trace.names[outer]).rstrip("0123456789")
        == f"{trace.names[inner].rpartition('::')[2]}Backward"
        for outer, inner in pairs.T.tolist()
    ]
    return np.asarray(own, np.bool_)[place.ravel()]


def _spans(trace: Trace, again: Int64, node: Int64) -> dict[int, Intervals]:
    """Return the stretches from the first operator that ran again in a backward operator to the end of the last one
    in it."""
    ops = trace.ops
    owners, place = np.unique(node[again], return_inverse=True)
    if not len(owners):
        return {}
    start = np.full(len(owners), np.iinfo(np.int64).max)
    end = np.full(len(owners), np.iinfo(np.int64).min)
    np.minimum.at(start, place, ops.start_ns[again])
    np.maximum.at(end, place, ops.end_ns[again])
    thread = ops.thread[owners]
    return {one: Intervals.of(start[thread == one], end[thread == one]) for one in threads_in(thread)}


def _framed(trace: Trace) -> dict[int, Intervals]:
    """Return the recorded calls that recompute, by thread."""
    frames = trace.frames
    rows = np.flatnonzero(named(trace.names, frames.name, _FRAME))
    thread = frames.thread[rows]
    return {
        one: Intervals.of(frames.start_ns[rows[thread == one]], frames.end_ns[rows[thread == one]])
        for one in (threads_in(thread) if len(rows) else ())
    }
