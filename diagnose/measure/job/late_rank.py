"""A rank that others wait for: how it differs from them, and what the job would gain without its lateness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from diagnose.measure.job.ranks import Job, Lateness
from diagnose.measure.views.noise import median_surely
from diagnose.model import Accounting

_ISSUING = frozenset({"dispatch", "launch"})

_WORK = frozenset({"compute", "exposed_copy", "dependency"})
"""Classes of time in which the device works or waits for itself; all others are the host's."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The time per step, in ns, that a job would save if its late rank were not late."""

    ns: int
    surely_ns: int


def wait_per_step_ns(late: Lateness) -> int:
    """Return what every other rank at least waits for the late one, in the mean step."""
    return sum(late.cost_ns) // len(late.cost_ns)


def gain_without(job: Job, late: Lateness) -> Gain:
    """Return what of the others' wait would be gone without the lateness.

    Where the rank issues its work more slowly, that is no more than its host takes longer for a step than the others'
    hosts do.
    """
    cost, mine = wait_per_step_ns(late), job.table[late.member].hosts_most_ns
    theirs = [row.hosts_ns for at, row in enumerate(job.table) if at != late.member and row.hosts_ns is not None]
    if mine is None or not theirs or not issues_slowly(excess_per_step(job, late.member)):
        return Gain(cost, cost)
    steps = min(map(len, (mine, *theirs)))
    # What one of many ranks takes is chance, and so is what they take in one step.
    longer = np.asarray(mine[:steps]) - np.median([one[:steps] for one in theirs], axis=0)
    gain = min(max(float(np.median(longer)), 0.0), cost)
    return Gain(round(gain), round(min(max(median_surely(longer) or 0.0, 0.0), gain)))


def excess_per_step(job: Job, member: int) -> Mapping[str, int]:
    """Return, by class of its time, how many ns per step a rank has more than the others in the median, most first."""
    per_step = [_classes(row.accounting, row.steps) for row in job.table]
    mine, others = per_step[member], [one for at, one in enumerate(per_step) if at != member]
    more = {name: int(time - median([one[name] for one in others])) for name, time in mine.items()}
    more.pop("exposed_comm", None)
    return dict(sorted(more.items(), key=lambda entry: -entry[1]))


def _classes(accounting: Accounting, steps: int) -> dict[str, float]:
    times = {"compute": accounting.compute, "exposed_copy": accounting.exposed_copy, **accounting.idle}
    return {name: time / max(steps, 1) for name, time in times.items()}


def issues_slowly(excess: Mapping[str, int]) -> bool:
    """Return whether what a rank has most more of (see `excess_per_step`) is issuing its work."""
    return next(iter(excess), None) in _ISSUING


def records_cost_ns(job: Job, late: Lateness, excess: Mapping[str, int]) -> int:
    """Return what the profiler's records cost the rank's host per step; 0 where its host is not what makes it late."""
    of_the_host = sum(time for name, time in excess.items() if name not in _WORK)
    return job.table[late.member].recording_ns or 0 if of_the_host >= wait_per_step_ns(late) / 2 else 0


def flop_ratio(job: Job, member: int) -> float | None:
    """Return a rank's arithmetic as a multiple of the others' median; None where it is not known."""
    mine = job.table[member].flop
    theirs = [row.flop for at, row in enumerate(job.table) if at != member]
    known = [flop for flop in theirs if flop]
    return mine / median(known) if mine and len(known) == len(theirs) else None
