"""Kernels that once took much longer than the same kernels took in other steps: the device was given to somebody else.

    stretched(measures)      # per row of device work the time beyond its own, 0 where it took what it takes

Steps that launch the same kernels in the same order, from operators with the same shapes, are laid over each other, so
that each kernel is compared with itself. Steps that are marked are asked for: inferred ones may be parts of one.
On a device of one's own the same kernel takes the same time within a few percent; a device that several processes
share is handed over every few milliseconds, and a kernel on which that falls lasts until it is handed back.

Where no shapes are recorded, the same kernels may have had more to do. Most kernels of a step last longer then, as with
longer sequences, or one of them has another length in every step, as where results are gathered into a growing tensor.
A handover is neither: it falls on few kernels of a step, and leaves the same kernel alone in most other steps.

Not compared: collectives (they wait for other ranks), copies and sets, and kernels beside which another ran.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from diagnose.measure.steps.timeline import Timeline
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace.schema import MISSING, Bool, Int64

FEWEST_STEPS = 3
"""Steps that must be alike: the shortest of them counts as what the kernel takes."""
BEYOND_NS = 100_000
"""A handover takes hundreds of microseconds at least; clocks, caches and neighbours on the memory bus do not."""
TIMES = 1.5
"""And it takes a kernel half as long again, or more."""
SAME = 1.1
"""Longer than its shortest by no more than this, a kernel took its own time."""
MOSTLY = 0.5
"""The share of the steps, for a kernel, and of the kernels, for a step, that must have taken its own time."""
_INFERRED = ("period", "whole trace", "none")
_OTHERS = (KernelClass.COLLECTIVE, KernelClass.COPY, KernelClass.SET)


def stretched(measures: Timeline) -> Int64 | None:
    """Per row of device work, nanoseconds beyond what it takes; None where too few steps are alike."""
    device = measures.trace.device
    steps = alike_steps(measures)
    if len(steps) < FEWEST_STEPS:
        return None
    rows = np.stack(steps)
    length = (device.end_ns - device.start_ns)[rows]
    own = length.min(axis=0)
    comparable = ~np.isin(measures.classes[rows], _OTHERS) & _alone(measures)[rows]
    long = comparable & (length > own + BEYOND_NS) & (length > TIMES * own) & _elsewhere_alike(length, own, comparable)
    result = np.zeros(len(device), np.int64)
    result[rows] = np.where(long, length - own, 0)
    return result


def _elsewhere_alike(length: Int64, own: Int64, comparable: Bool) -> Bool:
    """Per step and place, whether the kernel took its own time in most steps, and most kernels did in this step."""
    alike = length <= SAME * own
    in_steps = (alike | ~comparable).mean(axis=0) >= MOSTLY
    of_step = (alike & comparable).sum(axis=1) >= MOSTLY * comparable.sum(axis=1)
    return np.asarray(in_steps[None, :] & of_step[:, None], np.bool_)


def alike_steps(measures: Timeline, *, of_shapes: bool = True) -> list[Int64]:
    """The rows of those steps that launched the same work in the same order; of several kinds, the most frequent.

    `of_shapes`: and launched it from operators with the same shapes, where those are recorded.
    """
    device, steps = measures.trace.device, measures.steps
    if steps.found_by in _INFERRED:
        return []
    rows = measures.rows_within_steps(np.ones(len(device), np.bool_))
    step = np.searchsorted(steps.end_ns, device.start_ns[rows], side="right")
    order = np.lexsort((measures.launches.start_ns[rows], step))
    rows, step = rows[order], step[order]
    parts = np.split(rows, np.flatnonzero(np.diff(step)) + 1) if len(rows) else []
    op, shapes = measures.op_of_work, measures.trace.ops.shapes
    given = np.where(op == MISSING, MISSING, shapes[op]) if len(shapes) else op
    words = [device.name[part].tobytes() + (given[part].tobytes() if of_shapes else b"") for part in parts]
    if not words:
        return []
    usual, _ = Counter(words).most_common(1)[0]
    return [part for part, word in zip(parts, words, strict=True) if word == usual]


def _alone(measures: Timeline) -> Bool:
    """Rows during which nothing else ran on the device."""
    device = measures.trace.device
    order = np.argsort(device.start_ns, kind="stable")
    start, end = device.start_ns[order], device.end_ns[order]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1])) <= start
    after = np.concatenate((start[1:] >= end[:-1], [True])) if len(start) else before
    result = np.empty(len(order), np.bool_)
    result[order] = before & after
    return result
