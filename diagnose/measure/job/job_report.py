"""All that the recordings of a job's ranks say of what lies between them, in one piece for reports.

between = between_ranks([Measures(trace) for trace in traces])
between.waits[0][2]          # how long rank 0 waits for rank 2, in ns a step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket
from diagnose.measure.comm.ddp.least_exposure import least_exposed_ns
from diagnose.measure.comm.fsdp_modules import ShardedModule, sharded_modules
from diagnose.measure.job.bus_bandwidth import BusBandwidth, bus_bandwidth
from diagnose.measure.job.job_replay import Blocking, blocking_communication
from diagnose.measure.job.process_groups import Bubble, RankGroup, pipeline_bubble, rank_groups
from diagnose.measure.job.ranks import Job, job_of
from diagnose.measure.job.waits import who_waits
from diagnose.trace.intervals import Intervals


@dataclass(frozen=True)
class OfRank:
    """The part of the job's report that comes from one rank's own recording."""

    rank: int | None
    device: str | None
    """None where it has no name, or there is none."""
    has_device: bool
    host_settings: dict[str, str]
    """Network settings of its environment."""
    exposed_wait_ns: int | None
    """The time per counted step in collectives waiting for other ranks, without compute. None where none could be
    matched."""
    groups: tuple[RankGroup, ...]
    bubble: Bubble | None


@dataclass(frozen=True)
class JobReport:
    """A job, seen across its ranks."""

    job: Job
    waits: tuple[tuple[int, ...], ...]
    """`waits[i][j]`: how long the i-th row of the job's table waits in collectives to which the j-th came last, and
    computes nothing: ns a counted step. Empty where no collectives could be matched."""
    ranks: tuple[OfRank, ...]
    """The ranks in the order of the job's table."""
    shown: int
    """The row of which buckets and modules are shown: the rank that waits least, so that its times are its own."""
    buckets: tuple[GradientBucket, ...]
    least_exposed_ns: int | None
    """What any choice of buckets leaves exposed there, per step; None where that is not known."""
    modules: tuple[ShardedModule, ...]
    bandwidth: tuple[BusBandwidth, ...]
    blocking: Blocking | None
    """What of the exposed communication the step would end sooner without; None where that cannot be told."""


def between_ranks(measures: Sequence[Measures]) -> JobReport:
    """Ranks in the order given; of several recordings of one rank the first."""
    job = job_of(measures)
    taken = [measures[number] for number in job.given]
    waited = [row.waited_ns if row.waited_ns is not None else np.inf for row in job.table]
    shown = int(np.argmin(waited)) if waited else 0
    return JobReport(
        job=job,
        waits=who_waits(job, taken[0].steps.start_ns, taken[0].steps.end_ns) if taken else (),
        ranks=tuple(_of_rank(one, row if job.matched else None) for one, row in zip(taken, job.waiting, strict=True)),
        shown=shown,
        buckets=taken[shown].gradient_buckets if taken else (),
        least_exposed_ns=least_exposed_ns(taken[shown]) if taken else None,
        modules=sharded_modules(taken[shown]) if taken else (),
        bandwidth=bus_bandwidth(measures, job),
        blocking=blocking_communication(measures, job),
    )


def _of_rank(measures: Measures, waiting: Intervals | None) -> OfRank:
    trace = measures.trace
    names = (trace.facts.device_name, *trace.device_names)
    return OfRank(
        rank=trace.rank,
        device=next((name for name in names if name), None),
        has_device=measures.has_device,
        host_settings=dict(trace.facts.network_settings or {}),
        exposed_wait_ns=None
        if waiting is None
        else (waiting & measures.counted).total_ns // max(measures.step_count, 1),
        groups=rank_groups(measures),
        bubble=pipeline_bubble(measures),
    )
