"""Accounting of a process without recorded device work: its training thread is what a step waits for.

Framework operators on any thread of the process are compute, outside waits for data; collective calls not covered by
them are exposed communication. What the loader, garbage collection, compiling and files took is idle time by cause, the
rest of a traced run is Python. Without operators (a live run that was not traced), the rest is unknown: samples do not
tell the Python of a line from an operator that the line calls, which has no frame of its own. Waits that only the step
log knows are placed at the beginning of their step.
"""

from __future__ import annotations

import re

import numpy as np

from diagnose.measure.steps.accounting import Occupation
from diagnose.measure.steps.idle import CAUSES
from diagnose.measure.steps.steps import StepSpans
from diagnose.measure.views.host_activity import loading, ranges_of
from diagnose.measure.views.names import named
from diagnose.measure.views.stacks import sampled_causes
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import RangeKind

_COLLECTIVE_OPS = re.compile(r"^(c10d|gloo|mpi|ucc|_c10d_functional|nccl)::?|record_param_comms")


def host_occupation(trace: Trace, main: int) -> Occupation:
    """Compute and communication of a process that has no recorded device work."""
    collective = named(trace.names, trace.ops.name, _COLLECTIVE_OPS)
    comm = Intervals.of_rows(trace.ops, collective)
    compute = Intervals.of_rows(trace.ops, ~collective)
    waiting = Intervals.union(times for _, times in _exact(trace, main))
    # A collective operator nests others (copies into buckets): what lies inside it is communication.
    return Occupation(
        compute - waiting - comm, (comm | ranges_of(trace, RangeKind.COLLECTIVE)) - waiting, Intervals.empty()
    )


def host_idle(trace: Trace, occupation: Occupation, main: int, steps: StepSpans) -> dict[str, Intervals]:
    """The time of the steps that the occupation leaves, by cause; disjoint, and it covers that time exactly."""
    found: dict[str, list[Intervals]] = {cause: [] for cause in CAUSES}
    if len(steps) == 0:
        return {cause: Intervals.empty() for cause in CAUSES}
    late = occupation.busy.gaps(int(steps.start_ns[0]), int(steps.end_ns[-1]))
    for cause, times in [*_exact(trace, main), ("input", _logged_input(trace, steps)), *sampled_causes(trace)]:
        taken = late & times
        found[cause].append(taken)
        late = late - taken
    found["python" if len(trace.ops) else "unknown"].append(late)
    return {cause: Intervals.union(parts) for cause, parts in found.items()}


def _exact(trace: Trace, main: int) -> list[tuple[str, Intervals]]:
    threads = {main} if main >= 0 else None
    return [
        ("input", loading(trace, threads)),
        ("gc", ranges_of(trace, RangeKind.GC)),
        ("compile", ranges_of(trace, RangeKind.COMPILE)),
        ("io", ranges_of(trace, RangeKind.CHECKPOINT)),
    ]


def _logged_input(trace: Trace, steps: StepSpans) -> Intervals:
    if (trace.ranges.kind == RangeKind.INPUT).any() or len(trace.step_log) == 0:
        return Intervals.empty()
    row = np.searchsorted(trace.step_log.end_ns, steps.host_end_ns)
    inside = np.minimum(row, len(trace.step_log) - 1)
    known = (trace.step_log.end_ns[inside] == steps.host_end_ns) & (trace.step_log.input_ns[inside] > 0)
    waited = np.where(known, trace.step_log.input_ns[inside], 0)
    return Intervals.of(steps.start_ns, np.minimum(steps.start_ns + waited, steps.end_ns))
