"""Who waits for whom: of what each rank waits in collectives and computes nothing, the part for each that came last."""

from __future__ import annotations

import numpy as np

from diagnose.measure.ranks import Job, step_of
from diagnose.trace.schema import Int64


def who_waits(job: Job, step_start_ns: Int64, step_end_ns: Int64) -> tuple[tuple[int, ...], ...]:
    """`[i][j]`: how long the i-th row of the job's table waits for the j-th and computes nothing, in ns a counted step
    of the first row, whose steps are given. Empty where no collectives could be matched."""
    if not job.matched:
        return ()
    count = len(job.table)
    found: Int64 = np.zeros((count, count), np.int64)
    for group in job.matched:
        counted = (step_of(group, step_start_ns, step_end_ns) >= 0) & group.comparable
        last = np.array(group.members)[group.last[counted]]
        for column, member in enumerate(group.members):
            begin = group.start_ns[counted, column]
            end = begin + np.maximum(group.wait_ns[counted, column], 0)
            np.add.at(found[member], last, job.waiting[member].covered(begin, end))
    return tuple(tuple((row // max(len(step_start_ns), 1)).tolist()) for row in found)
