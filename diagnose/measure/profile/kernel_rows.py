"""The kernels, copies and sets of the counted steps, summed by name."""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.profile.work_sources import module_of, place_of
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.model import KernelRow
from diagnose.trace.schema import MISSING, Int64

MOST_ROWS = 200
"""Rows of a table; what comes after them takes next to nothing of a step."""
_WITH_LINES = 40
"""Rows whose lines are looked up."""


def kernel_rows(measures: Measures) -> tuple[KernelRow, ...]:
    """One row a name, the longest first."""
    device = measures.trace.device
    rows = measures.rows_within_steps(device.name != MISSING)
    if not len(rows):
        return ()
    length = (device.end_ns - device.start_ns)[rows]
    names = device.name[rows]
    total, count = np.bincount(names, length).astype(np.int64), np.bincount(names)
    largest = [name for name in np.argsort(-total, kind="stable")[:MOST_ROWS].tolist() if count[name]]
    found = []
    for number, name in enumerate(largest):
        mine = names == name
        found.append(_row(measures, rows[mine], length[mine], number < _WITH_LINES))
    return tuple(found)


def _row(measures: Measures, rows: Int64, length: Int64, with_line: bool) -> KernelRow:
    trace = measures.trace
    ops = measures.op_of_work[rows]
    operator, launched = _operator(measures, ops, length)
    bounds = measures.kernel_bounds
    known = (bounds.flops[rows] >= 0) & (bounds.bytes[rows] >= 0)
    return KernelRow(
        name=trace.names[trace.device.name[rows[0]]],
        kind=KernelClass(int(np.bincount(measures.classes[rows]).argmax())).name.lower(),
        total_ns=int(length.sum()),
        count=len(rows),
        operator=operator,
        module=module_of(measures, launched, length[ops != MISSING]),
        place=place_of(measures, launched) if with_line else None,
        flops=int(bounds.flops[rows[known]].sum()) if known.any() else None,
        moved_bytes=int(bounds.bytes[rows[known]].sum()) if known.any() else None,
        known_ns=int(length[known].sum()),
        format=bounds.format_of(int(rows[length.argmax()])) or None,
    )


def _operator(measures: Measures, ops: Int64, length: Int64) -> tuple[str | None, Int64]:
    """The operator that launched the most of some work, and all operators that launched any."""
    known = ops != MISSING
    launched = ops[known]
    names = measures.trace.ops.name[launched]
    if not len(launched) or (names < 0).all():
        return None, launched
    return measures.trace.names[int(np.bincount(names.clip(0), length[known] * (names >= 0)).argmax())], launched
