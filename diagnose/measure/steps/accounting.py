"""Where the time of a step went: exact classes that sum to it, whatever the trace.

Over the union of all streams of a device: compute = |∪C|, exposed communication = |∪N \\ ∪C|, exposed copies =
|∪M \\ ∪C \\ ∪N|, idle = the rest by cause. Setting memory counts as compute: it is the program's own work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.model import Accounting
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64


@dataclass(frozen=True, eq=False)
class Occupation:
    """The occupation of the device (or, without one, of the host) as disjoint sets of time."""

    compute: Intervals
    comm: Intervals
    """Communication, whether or not compute covers it."""
    copies: Intervals
    """Copies, whether or not anything covers them."""

    @property
    def busy(self) -> Intervals:
        """Any of the three."""
        return Intervals.union((self.compute, self.comm, self.copies))


def main_device(trace: Trace) -> Bool:
    """The rows of the device that worked most: one process is accounted for on one device."""
    device = trace.device.device
    if len(device) == 0:
        return np.zeros(0, np.bool_)
    ordinals = np.unique(device)
    lengths = trace.device.end_ns - trace.device.start_ns
    busiest = max(ordinals.tolist(), key=lambda ordinal: (int(lengths[device == ordinal].sum()), -ordinal))
    return np.asarray(device == busiest, np.bool_)


def device_occupation(trace: Trace, rows: Bool, classes: npt.NDArray[np.uint8]) -> Occupation:
    """Occupation of the device by the rows of its work."""
    comm, copies = classes == KernelClass.COLLECTIVE, classes == KernelClass.COPY
    return Occupation(*(_union(trace, rows & part) for part in (~comm & ~copies, comm, copies)))


def _union(trace: Trace, rows: Bool) -> Intervals:
    return Intervals.of_rows(trace.device, rows)


def account(
    occupation: Occupation,
    idle: Mapping[str, Intervals],
    starts: Int64,
    ends: Int64,
    kinds: Mapping[str, Intervals] | None = None,
) -> list[Accounting]:
    """One accounting per window [start, end); `idle` covers exactly what the occupation leaves free in them.

    `kinds` divides the compute: disjoint sets whose union it is.
    """
    compute = occupation.compute.covered(starts, ends)
    comm = (occupation.comm - occupation.compute).covered(starts, ends)
    copies = (occupation.copies - occupation.comm - occupation.compute).covered(starts, ends)
    causes = {cause: times.covered(starts, ends) for cause, times in idle.items()}
    parts = {kind: times.covered(starts, ends) for kind, times in (kinds or {}).items()}
    return [
        Accounting(
            int(compute[i]),
            int(comm[i]),
            int(copies[i]),
            {cause: int(covered[i]) for cause, covered in causes.items()},
            {kind: int(covered[i]) for kind, covered in parts.items()},
        )
        for i in range(len(starts))
    ]


def account_within(
    occupation: Occupation, idle: Mapping[str, Intervals], kinds: Mapping[str, Intervals], time: Intervals
) -> Accounting:
    """The accounting of some stretches of time together: it sums to those parts of them that the other three know."""
    comm, copies = occupation.comm - occupation.compute, occupation.copies - occupation.comm - occupation.compute
    return Accounting(
        (occupation.compute & time).total_ns,
        (comm & time).total_ns,
        (copies & time).total_ns,
        {cause: (times & time).total_ns for cause, times in idle.items()},
        {kind: (times & time).total_ns for kind, times in kinds.items()},
    )


def add_accountings(parts: list[Accounting]) -> Accounting:
    """The sum of several accountings."""
    causes = {cause: sum(part.idle.get(cause, 0) for part in parts) for part in parts[:1] for cause in part.idle}
    kinds = {kind: sum(part.compute_by[kind] for part in parts) for part in parts[:1] for kind in part.compute_by}
    return Accounting(
        sum(part.compute for part in parts),
        sum(part.exposed_comm for part in parts),
        sum(part.exposed_copy for part in parts),
        causes,
        kinds,
    )
