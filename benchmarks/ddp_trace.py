"""Recordings of a configuration of `ddp_buckets_rank.py` on all ranks, and what they say of its communication."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from diagnose.measure import Measures
from diagnose.measure.job.job_report import between_ranks
from diagnose.trace.readers import open_traces

if TYPE_CHECKING:
    from rank_model import Job

SETTLED = 11
"""Steps before a recording: DistributedDataParallel times its first ten, for which the host waits for the device."""
RECORDED = 3


def traced(job: Job, begin: Any, folder: Path, name: str) -> list[Path]:
    """Records some steps on every rank; the files of all, in the order of the ranks."""
    step, finish = begin()
    for _ in range(SETTLED):
        step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if job.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    files = [folder / f"{name}-rank{rank}.trace.json.gz" for rank in range(dist.get_world_size())]
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=RECORDED, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(files[job.rank])),
        record_shapes=True,
    ) as profiler:
        for _ in range(1 + RECORDED):
            step()
            profiler.step()
    job.synchronize()
    finish()
    dist.barrier()
    return files


def exposed(files: list[Path]) -> dict[str, float | None]:
    """The exposed communication of a step in ms; None where it is unknown.

    Of the mean rank, communication that nothing hides, and what of it is waiting for other ranks. Of the rank that
    waits least, what its gradients leave exposed after the backward pass, and what any choice of buckets does.
    """
    between = between_ranks([Measures(trace) for trace in open_traces(files)])
    waits = [one.exposed_wait_ns for one in between.ranks]
    return {
        "exposed_ms": 1e-6 * _mean([row.accounting.exposed_comm / max(row.steps, 1) for row in between.job.table]),
        "waiting_ms": None if None in waits else 1e-6 * _mean([wait or 0 for wait in waits]),
        "tail_ms": 1e-6 * sum(bucket.tail_ns for bucket in between.buckets) if between.buckets else None,
        "least_ms": None if between.least_exposed_ns is None else 1e-6 * between.least_exposed_ns,
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
