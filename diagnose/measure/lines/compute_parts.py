"""The parts of the device's compute by bound, number format, module and line. They sum to it.

    parts = compute_parts(measures)       # the longest first
    sum(part.time_ns for part in parts) == measures.accounting.compute

Where kernels overlap, a nanosecond belongs to the one that began first. Work that began before the first counted step,
and reaches into it, is of unknown class.

Thresholds
    MOST 48: parts told apart; shorter ones of one class become one without module and line.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from diagnose.measure.lines.host_side import HostSide
from diagnose.measure.roofline.kernel_bounds import Bound
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.model import ComputePart, Place
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Int64

MOST = 48

_Key = tuple[str, str, bool, str, tuple[str, int, str | None] | None]


@dataclass(frozen=True, eq=False)
class OwnTime:
    """Pieces of compute, disjoint and in order; together they are all of it."""

    rows: Int64
    """The row of `trace.device` that each piece belongs to."""
    starts: Int64
    ends: Int64


def own_time(measures: HostSide) -> OwnTime:
    """The compute of the device, each nanosecond with the row of device work that began first."""
    device = measures.trace.device
    classes = measures.classes
    rows = np.flatnonzero(measures.rows & (classes != KernelClass.COLLECTIVE) & (classes != KernelClass.COPY))
    rows = rows[np.argsort(device.start_ns[rows], kind="stable")]
    ends = device.end_ns[rows]
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)))[: len(rows)]
    starts = np.maximum(device.start_ns[rows], before)
    kept = ends > starts
    return OwnTime(rows[kept], starts[kept], ends[kept])


def compute_kinds(measures: HostSide) -> dict[str, Intervals]:
    """The time of compute by what bounds it (`Bound`, in small letters); disjoint, and together all of it."""
    own = own_time(measures)
    kinds = measures.kernel_bounds.kind[own.rows]
    found = {}
    for bound in Bound:
        mine = kinds == bound
        if mine.any():
            found[bound.name.lower()] = Intervals.of(own.starts[mine], own.ends[mine])
    return found


def compute_parts(measures: HostSide) -> tuple[ComputePart, ...]:
    """The compute of all counted steps together; empty without a device."""
    if not measures.has_device or not measures.step_count:
        return ()
    own, bounds, device = own_time(measures), measures.kernel_bounds, measures.trace.device
    time = measures.counted.covered(own.starts, own.ends)
    counted = time > 0
    rows, time = own.rows[counted], time[counted]
    length = np.maximum(device.end_ns[rows] - device.start_ns[rows], 1)
    least = bounds.least_ns[rows] * time / length  # of a row that is cut or overlapped, as much of its bound
    total: defaultdict[_Key, int] = defaultdict(int)
    known: defaultdict[_Key, int] = defaultdict(int)
    needed: defaultdict[_Key, float] = defaultdict(float)
    for key, took, bound in zip(_keys(measures, rows), time.tolist(), least.tolist(), strict=True):
        total[key] += took
        if not math.isnan(bound):
            known[key] += took
            needed[key] += bound
    order = sorted(total, key=lambda key: (-total[key], key[:4]))
    merged: defaultdict[_Key, list[_Key]] = defaultdict(list)
    for place, key in enumerate(order):
        merged[key if place < MOST else (*key[:3], "", None)].append(key)
    parts = [
        ComputePart(
            bound=key[0],
            format=key[1] or None,
            backward=key[2],
            module=key[3] or None,
            place=Place(key[4][0], key[4][1], function=key[4][2]) if key[4] else None,
            time_ns=sum(total[one] for one in keys),
            known_ns=sum(known[one] for one in keys),
            least_ns=round(sum(needed[one] for one in keys)),
        )
        for key, keys in merged.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.time_ns))


def _keys(measures: HostSide, rows: Int64) -> list[_Key]:
    """Per row of device work: what bounds it, its format, whether it is of a backward pass, its module and its line."""
    bounds = measures.kernel_bounds
    ops = measures.op_of_work[rows]
    different, which = np.unique(ops, return_inverse=True)
    of_op = [_of_op(measures, op) for op in different.tolist()]
    kinds = [Bound(kind).name.lower() for kind in bounds.kind[rows].tolist()]
    formats = [bounds.format_of(row) for row in rows.tolist()]
    return [(kind, form, *of_op[op]) for kind, form, op in zip(kinds, formats, which.ravel().tolist(), strict=True)]


def _of_op(measures: HostSide, op: int) -> tuple[bool, str, tuple[str, int, str | None] | None]:
    """Return whether an operator is of a backward pass, its module, and the innermost line of the program's own."""
    if op == MISSING:
        return False, "", None
    tree = measures.op_tree
    backward, ahead, at = False, op, op
    while at != MISSING:
        backward |= bool(tree.backward[at])
        if tree.forward[at] != MISSING:
            ahead, backward = int(tree.forward[at]), True
            break
        at = int(tree.nesting.parent[at])
    stack = int(measures.followed.of_op[ahead]) if measures.followed else MISSING
    frame = next((frame for frame in measures.trace.stacks[stack] if frame.owned), None) if stack >= 0 else None
    place = (frame.file, frame.line, frame.function) if frame else None
    return backward, ".".join(tree.module_path(ahead)), place
