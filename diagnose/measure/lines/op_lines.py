"""The lines of source that some operators belong to, the forward operator's where one runs in a backward pass."""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.measure.lines.host_side import HostSide
from diagnose.measure.lines.line_attribution import ranked_places
from diagnose.model import Place
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

_MOST = 512  # stretches looked up: they repeat from layer to layer and step to step
_BETWEEN_NS = 30_000  # the Python between two operators of one expression belongs to it


def places_of_ops(measures: HostSide, ops: Int64) -> tuple[Place, ...]:
    """The lines that operators (rows of `trace.ops`, -1 is left out) were called from, the biggest share first.

    From lines that were followed, each counts by the device time of its operators, and the line that called the
    function of the first comes second; otherwise from samples or recorded calls at the time of the operators.
    """
    if measures.followed:
        places = _followed(measures, ops)
        if places:
            return places
    spans = op_spans(measures, ops)
    return measures.places(spans) if len(spans) else ()


def _followed(measures: HostSide, ops: Int64) -> tuple[Place, ...]:
    trace = measures.trace
    rows = np.unique(ops[ops != MISSING])
    if not len(rows):
        return ()
    ahead, behind = _forward(measures, rows)
    called = np.where(behind & (ahead != MISSING), ahead, rows)
    stacks = measures.followed.of_op[called]
    known = (stacks != MISSING) & (~behind | (ahead != MISSING) | (ahead == MISSING).all())
    if not known.any():
        return ()
    weights = np.maximum(measures.op_tree.device_ns[rows[known]], 1)
    numbers = np.bincount(stacks[known], weights=weights)
    found = Counter({int(stack): int(numbers[stack]) for stack in np.flatnonzero(numbers).tolist()})
    places = ranked_places(found, trace)
    return (*places[:1], *_callers(trace, found, places), *places[1:])


def _callers(trace: Trace, stacks: Counter[int], places: tuple[Place, ...]) -> tuple[Place, ...]:
    """The line from which the function of the first place was called most, where that is no place itself."""
    if not places:
        return ()
    first = (places[0].file, places[0].line)
    lines: Counter[tuple[str, int, str]] = Counter()
    for stack, count in stacks.items():
        owned = [frame for frame in trace.stacks[stack] if frame.owned]
        if len(owned) > 1 and (owned[0].file, owned[0].line) == first:
            lines[owned[1].file, owned[1].line, owned[1].function] += count
    return tuple(
        Place(file, line, function=function)
        for (file, line, function), _ in lines.most_common(1)
        if (file, line) not in {(place.file, place.line) for place in places}
    )


def op_spans(measures: HostSide, ops: Int64) -> Intervals:
    """Return when the host was in some operators, or in the forward operators that they differentiate."""
    table = measures.trace.ops
    rows = np.unique(ops[ops != MISSING])
    if not len(rows):
        return Intervals.empty()
    ahead, behind = _forward(measures, rows)
    known = np.unique(np.where(behind, ahead, rows))
    # What only runs in backward passes belongs to the line that runs them, for want of a better one.
    known = known[known != MISSING]
    rows = known if len(known) else rows
    spans = Intervals.of_rows(table, rows).joined(_BETWEEN_NS)
    every = max(len(spans) // _MOST, 1)
    return Intervals(spans.starts[::every], spans.ends[::every])


def _forward(measures: HostSide, rows: Int64) -> tuple[Int64, Bool]:
    """Per operator, the forward operator that it, or what is around it, differentiates; whether it does so at all."""
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
