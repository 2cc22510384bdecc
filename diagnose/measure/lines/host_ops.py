"""Operators that compute on the processor while the device idles, step after step.

    host_computing(measures)        # that idle time, and by operator how much of it

An operator that launches nothing and takes long is either held up (a lock, no core to run on, something loaded for the
first time) or does its work itself: random numbers drawn on the host, a batch made by hand there. Held up, one operator
is as good as any other; what computes is the same one in every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.steps.idle import ISSUE_NS
from diagnose.measure.views.host_activity import loading, on_threads
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

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
    rows = _alone(measures)
    spent = {}
    stretches = []
    long = trace.ops.end_ns[rows] - trace.ops.start_ns[rows] > ISSUE_NS
    for name in np.unique(trace.ops.name[rows[long]]).tolist():
        mine = trace.ops.name[rows] == name
        if long[mine].mean() < MOSTLY:
            continue
        at = rows[mine & long]
        time = Intervals.of_rows(trace.ops, at) & late
        if (measures.per_step(time) > ISSUE_NS).mean() >= REPEATED:
            spent[trace.names[name]] = time.total_ns
            stretches.append(time)
    return HostOps(Intervals.union(stretches), dict(sorted(spent.items(), key=lambda entry: -entry[1])))


def _alone(measures: HostWaits) -> Int64:
    """Rows of training's operators that hold no other one and no call of the runtime, outside of loaders."""
    trace, tree = measures.trace, measures.op_tree
    holds = np.zeros(len(trace.ops) + 1, np.bool_)  # the last is for what lies in none
    holds[tree.nesting.parent] = True
    holds[tree.of_call] = True
    holds[tree.of_work] = True
    inside = loading(trace, measures.training_threads).contains(trace.ops.start_ns)
    mine = on_threads(trace.ops.thread, measures.training_threads) & ~holds[:-1] & ~inside
    return np.flatnonzero(mine & measures.counted.contains(trace.ops.start_ns))
