"""Calls that take memory from the device or give it back, in the counted steps: a steady step needs none.

    calls = device_allocation(trace, steps, tree)
    calls.taken, calls.returned     # rows of trace.calls
    calls.retried                   # those of `returned` that made room for an allocation that had failed
    calls.grows                     # memory is taken in step after step, and none is given back

A caching allocator that finds no room gives back all that it does not use and tries again: within one operator, memory
is given back and then taken. A program that empties the cache gives it back outside of operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.named import named
from diagnose.measure.optree import OpTree
from diagnose.measure.steps import StepSpans
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64

_TAKES = re.compile(r"^(cuda|hip)Malloc(Async)?(_ptsz)?$|^cuMem(Alloc|Create)")
_RETURNS = re.compile(r"^(cuda|hip)Free(Async)?(_ptsz)?$|^cuMem(Free|Release)")
_FEWEST_STEPS = 3
_LASTING = 0.75
"""Of the later half of the steps, the part in which memory must be taken for it to grow: filling a cache ceases."""


@dataclass(frozen=True, eq=False)
class DeviceAllocation:
    """Rows of `trace.calls` that begin within the host's counted steps, in order of their start."""

    taken: Int64
    returned: Int64
    retried: Int64
    taken_per_step: Int64

    @property
    def mostly_retried(self) -> bool:
        """Whether memory is given back for want of room, rather than by the program."""
        return len(self.retried) > 0 and 2 * len(self.retried) >= len(self.returned)

    @property
    def grows(self) -> bool:
        """Whether steps take memory from the device to the end, and give none back."""
        count = len(self.taken_per_step)
        later = self.taken_per_step[count // 2 :]
        return count >= _FEWEST_STEPS and not len(self.returned) and bool((later > 0).mean() >= _LASTING)


def device_allocation(trace: Trace, steps: StepSpans, tree: OpTree) -> DeviceAllocation:
    """The calls of the counted steps."""
    calls = trace.calls
    if not len(steps) or not len(calls):
        none = np.empty(0, np.int64)
        return DeviceAllocation(none, none, none, np.zeros(len(steps), np.int64))
    inside = (calls.start_ns >= steps.host_start_ns[0]) & (calls.start_ns < steps.host_end_ns[-1])
    takes = inside & named(trace.names, calls.name, _TAKES)
    returns = inside & named(trace.names, calls.name, _RETURNS)
    taken = np.flatnonzero(takes)
    starts = np.sort(calls.start_ns[taken])
    return DeviceAllocation(
        taken=taken,
        returned=np.flatnonzero(returns),
        retried=_retried(trace, takes, returns, tree),
        taken_per_step=np.searchsorted(starts, steps.host_end_ns) - np.searchsorted(starts, steps.host_start_ns),
    )


def _retried(trace: Trace, takes: Bool, returns: Bool, tree: OpTree) -> Int64:
    """Of the calls that give back, those after which the same operator takes."""
    rows = np.flatnonzero(takes | returns)
    if not len(rows) or not returns.any() or not len(trace.ops):
        return np.empty(0, np.int64)
    rows = rows[np.lexsort((trace.calls.start_ns[rows], trace.calls.thread[rows]))]
    thread, op = trace.calls.thread[rows], tree.of_call[rows]
    taking = np.flatnonzero(takes[rows])
    if not len(taking):
        return np.empty(0, np.int64)
    at = np.searchsorted(taking, np.arange(len(rows)))
    following = taking[np.minimum(at, len(taking) - 1)]
    same = (at < len(taking)) & (thread[following] == thread) & (op[following] == op) & (op != MISSING)
    return np.sort(rows[returns[rows] & same])
