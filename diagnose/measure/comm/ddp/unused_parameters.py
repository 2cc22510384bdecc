"""The host work of DistributedDataParallel, parameter by parameter, where it looks for unused parameters in each step.

It keeps a map on the host of which parameters were used. A hook of each gradient writes an entry (`select`, `fill_`),
first of all that autograd does once the gradient is accumulated; and when the last gradient is reduced, each entry is
read (`select`, `item`), to leave gradients alone that no rank has. torch records no name of its own for either, so that
both are told by where they stand and how many there are: hooks and loops of the user's own look much alike.

    map = used_map(measures)
    map.writes, map.reads       # per entry, from the beginning of the `select` to the end of what follows it
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.steps.backward_passes import BackwardPasses
from diagnose.measure.views.host_activity import calls_of
from diagnose.measure.views.names import named
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int32, Int64

_EVALUATES = re.compile(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")
_SELECT, _FILL, _ITEM = re.compile(r"^aten::select$"), re.compile(r"^aten::fill_$"), re.compile(r"^aten::item$")


@dataclass(frozen=True, slots=True)
class UnusedParameterSearch:
    """Time of the host in the map of used parameters; none where the recording does not show it."""

    writes: Intervals
    reads: Intervals


def used_map(measures: RankCollectives) -> UnusedParameterSearch:
    """The entries of the map that are written and read in backward passes, where all of a pass are."""
    trace, parent = measures.trace, measures.op_tree.nesting.parent
    ops, passes = trace.ops, measures.backward_passes
    evaluates, accumulates = (named(trace.names, ops.name, one) for one in (_EVALUATES, _ACCUMULATES))
    following = _following(ops.thread, parent, ops.start_ns)
    selects = np.flatnonzero(named(trace.names, ops.name, _SELECT) & (following != MISSING))
    if not len(selects) or not len(passes):
        return UnusedParameterSearch(Intervals.empty(), Intervals.empty())
    then, around = following[selects], parent[selects]
    after_gradient = np.isin(selects, following[accumulates])
    writes = after_gradient & (around != MISSING) & evaluates[around] & named(trace.names, ops.name, _FILL)[then]
    reads = (around == MISSING) & named(trace.names, ops.name, _ITEM)[then]
    reads &= np.isin(ops.thread[selects], ops.thread[evaluates])
    # The map lies on the host: no entry is read by a call to the device.
    calls = calls_of(trace, set(ops.thread[selects[reads]].tolist()), np.ones(len(trace.calls), np.bool_))
    reads &= calls.covered(ops.start_ns[selects], ops.end_ns[then]) == 0
    gradients = _per_pass(passes, ops.start_ns[accumulates])
    found = []
    for chosen in (writes, reads):
        starts, ends = ops.start_ns[selects[chosen]], ops.end_ns[then[chosen]]
        # As many as gradients: a loop of the user's own seldom has as many turns, and beside the reducer's has more.
        whole = _per_pass(passes, starts) == gradients
        kept = (begun := passes.begun_by(starts)) > 0
        kept &= whole[np.maximum(begun - 1, 0)]
        found.append(Intervals.of(starts[kept], ends[kept]))
    return UnusedParameterSearch(*found)


def _following(thread: Int32, parent: Int64, start_ns: Int64) -> Int64:
    """Per operator, the next one on its thread in the same operator, or -1."""
    following = np.full(len(parent), MISSING, np.int64)
    order = np.lexsort((start_ns, parent, thread))
    one, other = order[:-1], order[1:]
    same = (thread[one] == thread[other]) & (parent[one] == parent[other])
    following[one[same]] = other[same]
    return following


def _per_pass(passes: BackwardPasses, times_ns: Int64) -> Int64:
    """Return how many of some moments lie in each pass or behind it, before the next one."""
    begun = passes.begun_by(times_ns)
    return np.bincount(begun[begun > 0] - 1, minlength=len(passes))
