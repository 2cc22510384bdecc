"""The lines whose memory steps leave behind: allocations of earlier steps that nothing freed.

    kept_by(trace, device, since_ns, before_ns)     # rows of trace.memory, taken in between and alive at the end

A history begins somewhere: what was there before it is never seen.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.measure.lines.line_attribution import is_library
from diagnose.measure.memory.history import alive, history
from diagnose.model import Place
from diagnose.trace import StackFrame, Trace
from diagnose.trace.schema import Int64, MemoryAction

_BEGINS = "_make_grads"  # of torch.autograd.backward
_MOST_PLACES = 5  # lines that a finding names; chosen, not measured
_SMALLEST_SHARE = 0.05  # of the bytes: a line with fewer is not named; chosen, not measured


def kept_by(trace: Trace, device: int, since_ns: int, before_ns: int) -> Int64:
    """Allocations on a device within a stretch of time that are still there at the end of the history."""
    past = history(trace, device)
    rows = alive(trace, past.rows)
    time_ns = past.time_ns[np.searchsorted(past.rows, rows)]
    return rows[(time_ns >= since_ns) & (time_ns < before_ns)]


def backward_begins(trace: Trace, device: int) -> Int64:
    """Return when backward passes began, on the history's clock: each takes memory for the gradient of the loss
    first."""
    past = history(trace, device)
    begins = [number for number, stack in enumerate(trace.stacks) if any(one.function == _BEGINS for one in stack)]
    taken = trace.memory.action[past.rows] == MemoryAction.ALLOC
    return np.unique(past.time_ns[taken & np.isin(trace.memory.stack[past.rows], begins)])


def places_by_stack(trace: Trace, rows: Int64) -> tuple[Place, ...]:
    """The lines of the program that asked for allocations, by bytes, the most first; empty without stacks."""
    asked = rows[trace.memory.stack[rows] >= 0]
    sizes = np.bincount(trace.memory.stack[asked], weights=trace.memory.size_bytes[asked], minlength=1)
    lines: Counter[StackFrame] = Counter()
    for stack in np.flatnonzero(sizes).tolist():
        frame = next((one for one in trace.stacks[stack] if one.owned and not is_library(one.file)), None)
        if frame is not None:
            lines[StackFrame(frame.file, frame.line, frame.function)] += int(sizes[stack])
    total = int(trace.memory.size_bytes[rows].sum())
    return tuple(
        Place(frame.file, frame.line, function=frame.function, share=size / total)
        for frame, size in lines.most_common(_MOST_PLACES)
        if size >= _SMALLEST_SHARE * total
    )
