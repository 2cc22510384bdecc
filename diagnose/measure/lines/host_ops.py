"""Operators that compute on the processor while the device idles, step after step.

    host_computing(measures)        # that idle time, and by operator how much of it

An operator that takes long while it launches nothing is either held up (a lock, no core to run on, something loaded for
the first time) or does its work itself: random numbers drawn on the host, a batch made by hand there, what a compiled
function does on the host before it launches a kernel. Held up, one place is as good as any other; what computes is the
same operator in every step, and of an operator that holds others, the time before the same one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.steps.idle import ISSUE_NS
from diagnose.measure.views.host_activity import loading, on_threads
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

REPEATED = 0.75
"""A share of the counted steps: an operator that is long in so many of them computes."""
FEWEST_STEPS = 3
MOSTLY = 0.5
"""The share of its runs without launches that are long. A quick one that is held up now and then is not."""


@dataclass(frozen=True, eq=False)
class HostOps:
    """Idle time of the device, by the operator that computed on the processor meanwhile."""

    time: Intervals
    by_op: Mapping[str, int]
    """ns of all counted steps, the most first."""


def host_computing(measures: HostWaits) -> HostOps:
    """Idle time of the counted steps in operators that compute on the host; empty where no step repeats."""
    trace = measures.trace
    late = measures.idle["dispatch"] & measures.counted
    if measures.step_count < FEWEST_STEPS or not len(trace.ops) or not len(late):
        return HostOps(Intervals.empty(), {})
    own = [*_alone(measures), *_before_others(measures)]
    spent = {}
    stretches = []
    for name, starts, ends in own:
        long = ends - starts > ISSUE_NS
        if long.mean() < MOSTLY:
            continue
        time = Intervals.of(starts[long], ends[long]) & late
        if (measures.per_step(time) > ISSUE_NS).mean() >= REPEATED:
            spent[name] = time.total_ns
            stretches.append(time)
    return HostOps(Intervals.union(stretches), dict(sorted(spent.items(), key=lambda entry: -entry[1])))


_Own = tuple[str, Int64, Int64]
"""Host work of one kind: its name, and the begins and ends of its turns, in ns."""


def _alone(measures: HostWaits) -> Iterator[_Own]:
    """Yield training's operators that hold no other one and no call of the runtime, outside of loaders, by name."""
    trace, tree = measures.trace, measures.op_tree
    holds = np.zeros(len(trace.ops) + 1, np.bool_)  # the last is for what lies in none
    holds[tree.nesting.parent] = True
    holds[tree.of_call] = True
    holds[tree.of_work] = True
    rows = np.flatnonzero(_of_training(measures) & ~holds[:-1])
    names = trace.ops.name[rows]
    long = trace.ops.end_ns[rows] - trace.ops.start_ns[rows] > ISSUE_NS
    for name in np.unique(names[long]).tolist():
        mine = rows[names == name]
        yield trace.names[name], trace.ops.start_ns[mine], trace.ops.end_ns[mine]


def _before_others(measures: HostWaits) -> Iterator[_Own]:
    """Yield the time of training's operators before another operator that they hold, by the names of both. Before a
    mere launch, an operator of the framework has hardly anything to compute, and is held up."""
    trace, tree = measures.trace, measures.op_tree
    ops, calls = trace.ops, trace.calls
    holder = np.concatenate((tree.nesting.parent, tree.of_call))
    name = np.concatenate((ops.name, calls.name))
    start, end = (np.concatenate((getattr(ops, side), getattr(calls, side))) for side in ("start_ns", "end_ns"))
    held = np.flatnonzero((holder != MISSING) & np.append(_of_training(measures), False)[holder])
    held = held[np.lexsort((start[held], holder[held]))]
    if not len(held):
        return
    holder, name, start, end = holder[held], name[held], start[held], end[held]
    first = np.append(True, holder[1:] != holder[:-1])
    free = np.where(first, ops.start_ns[holder], np.append(0, end[:-1]))
    pairs = np.stack((ops.name[holder], name)).astype(np.int64)
    before_op = held < len(ops)
    for one in np.unique(pairs[:, before_op & (start - free > ISSUE_NS)], axis=1).T.tolist():
        mine = before_op & (pairs[0] == one[0]) & (pairs[1] == one[1])
        yield f"{trace.names[one[0]]} before {trace.names[one[1]]}", free[mine], np.maximum(start, free)[mine]


def _of_training(measures: HostWaits) -> Bool:
    """Per operator, whether it is training's, within the counted steps and outside of loaders."""
    trace = measures.trace
    inside = loading(trace, measures.training_threads).contains(trace.ops.start_ns)
    return (
        on_threads(trace.ops.thread, measures.training_threads)
        & ~inside
        & measures.counted.contains(trace.ops.start_ns)
    )
