"""Kernels that take longer in every step than in the step before: what they work on is kept, and grows.

    growing_work(measures).rows          # such kernels, of all steps
    growing_work(measures).left          # what part of each the same kernel took in the first of the steps

Steps that launch the same kernels in the same order are laid over each other, whatever the shapes of their operators. A
clock that falls, or batches that are sorted by length, make most kinds of kernels longer from step to step, and such
batches are copied to the device, each larger than the one before; a tensor to which each step adds its results makes
few kinds longer: those that copy and read it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.kernels.sharing.preempted_kernels import SAME, alike_steps
from diagnose.measure.steps.timeline import Timeline
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace.schema import Bool, CopyDirection, Float64, Int64

FEWEST_STEPS = 5
"""The fewest steps: so many lengths are in order by chance once in 120 times, and hardly ever so far apart."""
BEYOND_NS = 100_000
TIMES = 1.2
"""The factor by which a kernel grows from the first step to the last, together with so many ns: clocks and caches do
less."""
FEW = 0.5
"""The largest share of a step's time, by the kernels of the first one, that may grow, and the largest share of the
kinds of kernels that may take longer (by `SAME`) in the last step: an optimizer alone can be half of the time."""
_OTHERS = (KernelClass.COLLECTIVE, KernelClass.COPY, KernelClass.SET)


@dataclass(frozen=True, eq=False)
class GrowingWork:
    """Parallel arrays, one entry a kernel, step by step."""

    rows: Int64
    """Rows of `trace.device`."""
    left: Float64
    """The part of its time that it took in the first of the steps."""
    longest: int
    """The one of the rows that takes longest."""
    first_ns: int
    """What all of them took in that step."""
    last_ns: int
    """And in the last one."""


def growing_work(measures: Timeline) -> GrowingWork | None:
    """Return the work that grows over the counted steps; None where none does, or too few steps are alike to tell."""
    steps = alike_steps(measures, of_shapes=False)
    if len(steps) < FEWEST_STEPS:
        return None
    rows = np.stack(steps)
    device = measures.trace.device
    length = np.maximum(device.end_ns - device.start_ns, 1)[rows]
    first, last = length[0], length[-1]
    grows = (np.diff(length, axis=0) > 0).all(axis=0) & (last > first + BEYOND_NS) & (last > TIMES * first)
    computes = ~np.isin(measures.classes[rows[0]], _OTHERS)
    grows &= computes
    others_grow = last[~grows].sum() > TIMES * first[~grows].sum()
    if not grows.any() or others_grow or first[grows].sum() >= FEW * first.sum():
        return None
    if _most_kinds_grow(measures, rows[:, computes]) or _batches_grow(measures, rows):
        return None
    return GrowingWork(
        rows=rows[:, grows].reshape(-1),
        longest=int(rows[:, grows].flat[length[:, grows].argmax()]),
        left=(first[grows] / length[:, grows]).reshape(-1),
        first_ns=int(first[grows].sum()),
        last_ns=int(last[grows].sum()),
    )


def _most_kinds_grow(measures: Timeline, rows: Int64) -> bool:
    """Whether more than a few kinds of kernels, by their names, take longer in the last step than in the first."""
    device = measures.trace.device
    _, kind = np.unique(device.name[rows[0]], return_inverse=True)
    first, last = (np.bincount(kind, device.end_ns[step] - device.start_ns[step]) for step in (rows[0], rows[-1]))
    return bool((last > SAME * first).mean() > FEW)


def _batches_grow(measures: Timeline, rows: Int64) -> bool:
    """Whether the last step gets more from the host than the first, where the sizes of copies are recorded."""
    device = measures.trace.device
    copied: Bool = (device.direction[rows[0]] == CopyDirection.HOST_TO_DEVICE) & (device.size_bytes[rows] > 0).all(
        axis=0
    )
    first, last = device.size_bytes[rows[0][copied]].sum(), device.size_bytes[rows[-1][copied]].sum()
    return bool(last > SAME * first)
