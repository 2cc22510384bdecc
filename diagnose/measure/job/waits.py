"""Divides the time in which each rank waits in collectives and computes nothing among the ranks that came last."""

from __future__ import annotations

import numpy as np

from diagnose.measure.job.ranks import Job, step_of
from diagnose.trace.schema import Int64


def who_waits(job: Job, step_start_ns: Int64, step_end_ns: Int64) -> tuple[tuple[int, ...], ...]:
    """`[i][j]`: how long the i-th row of the job's table waits for the j-th and computes nothing, in ns a counted step
    of the first row, whose steps are given. Empty where no collectives could be matched."""
    if not job.matched:
        return ()
    count = len(job.table)
    stretches: list[list[tuple[Int64, Int64, Int64]]] = [[] for _ in range(count)]
    for group in job.matched:
        counted = (step_of(group, step_start_ns, step_end_ns) >= 0) & group.comparable
        last = np.array(group.members)[group.last[counted]]
        for column, member in enumerate(group.members):
            begin = group.start_ns[counted, column]
            stretches[member].append((begin, begin + np.maximum(group.wait_ns[counted, column], 0), last))
    found: Int64 = np.zeros((count, count), np.int64)
    for member, mine in enumerate(stretches):
        if mine:
            begin, end, last = _each_time_once(*map(np.concatenate, zip(*mine, strict=True)))
            np.add.at(found[member], last, job.waiting[member].covered(begin, end))
    return tuple(tuple((row // max(len(step_start_ns), 1)).tolist()) for row in found)


def _each_time_once(begin: Int64, end: Int64, last: Int64) -> tuple[Int64, Int64, Int64]:
    """Where several collectives wait at once (gloo's threads do), the time is that of the one that began first."""
    order = np.lexsort((end, begin))
    begin, end = begin[order], end[order]
    before = np.concatenate((begin[:1], np.maximum.accumulate(end)[:-1]))
    return np.minimum(np.maximum(begin, before), end), end, last[order]
