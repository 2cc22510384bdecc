"""The operators of the counted steps, summed by name."""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.profile.kernel_rows import MOST_ROWS
from diagnose.measure.profile.work_sources import module_of, place_of
from diagnose.model import OperatorRow
from diagnose.trace.schema import MISSING

_WITH_LINES = 40
"""Rows whose lines are looked up."""


def operator_rows(measures: Measures) -> tuple[OperatorRow, ...]:
    """One row a name: the most device time first, or the most host time where no device was recorded."""
    trace, steps = measures.trace, measures.steps
    ops = trace.ops
    if not len(ops) or not len(steps):
        return ()
    # The host's marks: where it runs ahead, it issues a step before the device comes to it.
    inside = (ops.start_ns >= steps.host_start_ns[0]) & (ops.start_ns < steps.host_end_ns[-1]) & (ops.name != MISSING)
    rows = np.flatnonzero(inside)
    if not len(rows):
        return ()
    launched = _launched_ns(measures)
    host, names = measures.op_tree.nesting.self_ns[rows], ops.name[rows]
    own = launched[rows]
    host_ns, device_ns = np.bincount(names, host).astype(np.int64), np.bincount(names, own).astype(np.int64)
    count = np.bincount(names)
    order = np.lexsort((-host_ns, -device_ns))
    found = []
    for number, name in enumerate(name for name in order[: MOST_ROWS * 2].tolist() if count[name]):
        if number == MOST_ROWS:
            break
        mine = names == name
        found.append(
            OperatorRow(
                name=trace.names[name],
                host_ns=int(host_ns[name]),
                device_ns=int(device_ns[name]),
                count=int(count[name]),
                module=module_of(measures, rows[mine], host[mine] + own[mine]),
                place=place_of(measures, rows[mine]) if number < _WITH_LINES else None,
            )
        )
    return tuple(found)


def _launched_ns(measures: Measures) -> np.typing.NDArray[np.int64]:
    """Per operator, the device time of the work that it launched itself."""
    device, of_work = measures.trace.device, measures.op_of_work
    known = of_work != MISSING
    length = (device.end_ns - device.start_ns)[known]
    return np.bincount(of_work[known], length, len(measures.trace.ops)).astype(np.int64)
