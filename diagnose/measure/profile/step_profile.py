"""One rank's counted steps as tables and a timeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.profile.counter_series import counter_series
from diagnose.measure.profile.kernel_rows import MOST_ROWS, kernel_rows
from diagnose.measure.profile.sampled_calls import sampled_calls
from diagnose.measure.profile.step_lanes import step_timeline
from diagnose.measure.profile.work_sources import module_of, place_of
from diagnose.model import Diagnosis, OperatorRow, Roof, StepProfile
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING


def profile_of(measures: Measures) -> StepProfile:
    """Return the contents of a rank's counted steps."""
    return StepProfile(
        rank=measures.trace.rank,
        step_count=measures.step_count,
        total_ns=measures.total_ns,
        kernels=kernel_rows(measures),
        operators=operator_rows(measures),
        timeline=step_timeline(measures),
        roof=_roof(measures),
        calls=sampled_calls(measures.trace),
        counters=counter_series(measures.trace),
    )


def _roof(measures: Measures) -> Roof | None:
    ceilings = measures.ceilings
    return Roof(dict(ceilings.flops_per_s), ceilings.bytes_per_s, ceilings.source) if ceilings else None


def slowest_profile(traces: Sequence[Trace], diagnosis: Diagnosis) -> StepProfile | None:
    """Return the profile of the rank whose steps are longest by the diagnosis; None where no steps were recorded."""
    counted = [one for one in diagnosis.per_rank if one.steps.count]
    if not counted:
        return None
    slowest = max(counted, key=lambda one: one.steps.total_ns / one.steps.count)
    trace = next((one for one in traces if (one.rank, one.source) == (slowest.rank, slowest.source)), None)
    return profile_of(Measures(trace)) if trace is not None else None


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
    device, of_work = measures.trace.device, measures.op_of_work
    known = of_work != MISSING
    length = (device.end_ns - device.start_ns)[known]
    launched = np.bincount(of_work[known], length, len(measures.trace.ops)).astype(np.int64)
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
