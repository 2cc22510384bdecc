"""Scaling of a program over ranks: its step on each number of ranks, the efficiency, and what takes the rest.

Weak scaling keeps the work of a rank: then the step should stay as long as it is, and the efficiency on n ranks is
t(1) / t(n). Strong scaling divides the work: the step should be an n-th, and the efficiency is t(1) / (n t(n)). Which
it is shows in the arithmetic of a rank where shapes were recorded, else in its compute: it stays, or shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.errors import UsageError
from diagnose.measure import Measures
from diagnose.measure.job.ranks import Job, job_of
from diagnose.measure.steps.pace import watched_step_ns
from diagnose.measure.views.noise import usual, usual_uncertain_by

WEAK, STRONG = "weak", "strong"
_ALIKE = 0.25
"""Compute of a rank that differs by no more than this from what is expected is taken to be as expected: beside
collectives it takes up to 1.4 times as long."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the program. Times are ns a step, of the mean rank; the step is the slowest rank's."""

    source: str
    ranks: int
    step_ns: float
    uncertain_ns: float
    """Two standard errors of the step."""
    watched: bool
    """The step was measured while nobody traced."""
    compute_ns: float
    exposed_ns: float
    """Communication that nothing hides."""
    waited_ns: float | None
    """The part of that spent waiting for other ranks; None where the ranks' collectives could not be matched."""
    other_ns: float
    flop: float | None = None
    """The arithmetic of a rank's step, where shapes were recorded."""


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A run against the one with the fewest ranks."""

    run: Run
    efficiency: float
    uncertain: float
    lost_ns: float
    """A step is longer by this than with an efficiency of 1."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Runs with rising numbers of ranks."""

    kind: str
    """`weak` or `strong`."""
    told: bool
    """The kind was told from the compute of a rank, not given."""
    rows: tuple[ScalingPoint, ...]


def run_of(measures: Sequence[Measures]) -> Run:
    """One run from the recordings of its ranks. Raises UsageError where no step was found."""
    job = job_of(measures)
    taken = [measures[number] for number in job.given]
    counted = [one for one in taken if one.step_count]
    if not counted:
        raise UsageError(f"no training step was found in {taken[0].trace.source if taken else 'an empty recording'}")
    lengths = [one.steps.length_ns for one in counted]
    slowest = max(lengths, key=usual)
    watched = [
        float(pace_ns) for one in counted if (pace_ns := watched_step_ns(one.trace)) and not one.replay.ran_ahead
    ]
    step_ns = max(watched) if watched else usual(slowest)
    return Run(
        source=counted[0].trace.source,
        ranks=max(counted[0].trace.world_size or 0, len(taken)),
        step_ns=step_ns,
        uncertain_ns=usual_uncertain_by(slowest) or 0.0,
        watched=bool(watched),
        compute_ns=_mean([one.accounting.compute / one.step_count for one in counted]),
        exposed_ns=_mean([one.accounting.exposed_comm / one.step_count for one in counted]),
        waited_ns=_waited(job, taken),
        other_ns=_mean([(one.accounting.exposed_copy + one.accounting.idle_ns) / one.step_count for one in counted]),
        flop=_mean([row.flop for row in job.table if row.flop]) or None,
    )


def scaling_of(runs: Sequence[Run], kind: str | None = None) -> Scaling:
    """Efficiencies against the run with the fewest ranks. Raises UsageError for runs of equal numbers of ranks, and
    where neither is said nor shows whether a rank's work stays the same."""
    ordered = sorted(runs, key=lambda run: run.ranks)
    counts = [run.ranks for run in ordered]
    if len(ordered) < 2 or len(set(counts)) < len(counts):
        raise UsageError(f"name runs on different numbers of ranks; these are on {', '.join(map(str, counts))}")
    found = kind or _kind(ordered)
    if found is None:
        known = ordered[0].flop and ordered[-1].flop
        what = "arithmetic" if known else "time to compute (its arithmetic is not recorded)"
        raise UsageError(
            f"a rank's {what} neither stays the same nor shrinks with the number of ranks: say --weak (each rank does "
            "the same work) or --strong (ranks divide the work)"
        )
    return Scaling(found, kind is None, tuple(_scaling_point(ordered[0], run, found) for run in ordered))


def _scaling_point(base: Run, run: Run, kind: str) -> ScalingPoint:
    ideal = base.step_ns * (base.ranks / run.ranks if kind == STRONG else 1.0)
    efficiency = ideal / run.step_ns
    relative = ((base.uncertain_ns / base.step_ns) ** 2 + (run.uncertain_ns / run.step_ns) ** 2) ** 0.5
    return ScalingPoint(run, efficiency, 0.0 if run is base else efficiency * relative, run.step_ns - ideal)


def _kind(ordered: Sequence[Run]) -> str | None:
    first, last = ordered[0], ordered[-1]
    if first.flop and last.flop:
        fewer = last.flop / first.flop
    elif first.compute_ns and last.compute_ns:
        fewer = last.compute_ns / first.compute_ns
    else:
        return None
    divided = first.ranks / last.ranks
    near = {WEAK: abs(np.log(fewer)), STRONG: abs(np.log(fewer / divided))}
    nearest = min(near, key=lambda name: near[name])
    return nearest if near[nearest] <= np.log(1 + _ALIKE) else None


def _waited(job: Job, taken: Sequence[Measures]) -> float | None:
    """Time per step that the mean rank waits for others; None where the ranks' collectives could not be matched."""
    if not job.matched:
        return None if any(one.accounting.exposed_comm for one in taken) else 0.0
    rows = [(one, waiting) for one, waiting in zip(taken, job.waiting, strict=True) if one.step_count]
    return _mean([(waiting & one.counted).total_ns / one.step_count for one, waiting in rows])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
