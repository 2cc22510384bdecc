"""Calls that take memory from the device or give it back, in the counted steps: a steady step needs none.

    calls = device_allocation(trace, steps, tree)
    calls.taken, calls.returned     # rows of trace.calls
    calls.mostly_retried            # they make room for allocations that had failed
    calls.grows                     # memory is taken in step after step, and none is given back

A caching allocator that finds no room gives back all that it does not use and tries again: within one operator, memory
is given back and then taken. A program that empties the cache gives it back outside of operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.steps.steps import StepSpans
from diagnose.measure.views.names import named
from diagnose.measure.views.op_tree import OpTree
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64

_TAKES = re.compile(r"^(cuda|hip)Malloc(Async)?(_ptsz)?$|^cuMem(Alloc|Create)")
_RETURNS = re.compile(r"^(cuda|hip)Free(Async)?(_ptsz)?$|^cuMem(Free|Release)")
_FEWEST_STEPS = 3
_LASTING = 0.75
"""The share of the later half of the steps in which memory must be taken for it to grow: filling a cache ceases."""


@dataclass(frozen=True, eq=False)
class DeviceAllocation:
    """Rows of `trace.calls` that begin within the host's counted steps, in order of their start."""

    taken: Int64
    returned: Int64
    retried: Int64
    """The rows of `returned` that made room for an allocation that had failed."""
    retries_per_step: Int64
    """Allocations for which room was made."""
    taken_per_step: Int64

    @property
    def mostly_retried(self) -> bool:
        """Whether memory is given back for want of room, rather than by the program, and not only in a first step.

        What libraries take and give back when they are first used looks the same.
        """
        lasts = len(self.retries_per_step) >= _FEWEST_STEPS and bool(self.retries_per_step[1:].any())
        return lasts and 2 * len(self.retried) >= len(self.returned)

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
        never = np.zeros(len(steps), np.int64)
        return DeviceAllocation(none, none, none, never, never)
    inside = (calls.start_ns >= steps.host_start_ns[0]) & (calls.start_ns < steps.host_end_ns[-1])
    takes = inside & named(trace.names, calls.name, _TAKES)
    returns = inside & named(trace.names, calls.name, _RETURNS)
    taken = np.flatnonzero(takes)
    retried, retries = _retried(trace, takes, returns, tree)
    return DeviceAllocation(
        taken=taken,
        returned=np.flatnonzero(returns),
        retried=retried,
        retries_per_step=_per_step(calls.start_ns[retries], steps),
        taken_per_step=_per_step(calls.start_ns[taken], steps),
    )


def _per_step(start_ns: Int64, steps: StepSpans) -> Int64:
    starts = np.sort(start_ns)
    return np.searchsorted(starts, steps.host_end_ns) - np.searchsorted(starts, steps.host_start_ns)


def _retried(trace: Trace, takes: Bool, returns: Bool, tree: OpTree) -> tuple[Int64, Int64]:
    """The calls that give memory back before the same operator takes some, and those that take it then."""
    none = np.empty(0, np.int64)
    rows = np.flatnonzero(takes | returns)
    if not len(rows) or not returns.any() or not len(trace.ops):
        return none, none
    rows = rows[np.lexsort((trace.calls.start_ns[rows], trace.calls.thread[rows]))]
    thread, op = trace.calls.thread[rows], tree.of_call[rows]
    taking = np.flatnonzero(takes[rows])
    if not len(taking):
        return none, none
    at = np.searchsorted(taking, np.arange(len(rows)))
    following = taking[np.minimum(at, len(taking) - 1)]
    same = (at < len(taking)) & (thread[following] == thread) & (op[following] == op) & (op != MISSING)
    same &= returns[rows]
    return np.sort(rows[same]), np.unique(rows[following[same]])
