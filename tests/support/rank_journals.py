"""The journal of a job of twelve ranks, one of which is late."""

from __future__ import annotations

from journals import T0, steps_seen
from tinygpt import MS

from diagnose.model import (
    SCHEMA,
    Accounting,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Place,
    RankAccounting,
    RankWait,
    Severity,
    Steps,
)
from diagnose.session import AnyEvent, CountersRead, DiagnosisMade, PhaseChanged, RunEnded, RunStarted, StepsSeen
from diagnose.units import NS_PER_S

RANKS = 12
LATE_RANK = 5


def ranks() -> list[AnyEvent]:
    """Twelve ranks of a job while it runs; the sixth one keeps the others waiting."""
    events: list[AnyEvent] = [
        RunStarted(
            at_ns=T0,
            command="run",
            program="-- torchrun --nproc-per-node 12 pretrain.py",
            cwd="/srv/jobs/pretrain",
            version="0.1.0",
        ),
        PhaseChanged(at_ns=T0 + 1, phase="waiting for steady steps, then tracing 4"),
    ]
    for rank in range(RANKS):
        late = 3 * MS if rank == LATE_RANK else 40_000 * rank
        seen = steps_seen(0, 60, 100 * MS, 12 * MS if rank == LATE_RANK else 0, T0 + NS_PER_S + late)
        values = {"gpu.sm_activity": 91.0 if rank == LATE_RANK else 74.0 + rank % 3}
        events += [
            StepsSeen(at_ns=seen.at_ns, rank=rank, ends_ns=seen.ends_ns, input_ns=seen.input_ns),
            CountersRead(at_ns=seen.at_ns, rank=rank, values=values),
        ]
    return sorted(events, key=lambda event: event.at_ns)


def ranks_diagnosed() -> list[AnyEvent]:
    """The same job, traced."""
    steps = Steps(4, 100 * MS, 100_400_000, 401_600_000, "optimizer")
    per_rank = []
    for rank in range(RANKS):
        late = rank == LATE_RANK
        comm = 8 * MS if late else 31 * MS
        accounting = Accounting(
            compute=4 * 66 * MS,
            exposed_comm=4 * comm,
            idle={
                "input": 4 * 23 * MS if late else 0,
                "dependency": 401_600_000 - 4 * (66 * MS + comm) - 92 * MS * late,
            },
        )
        waits = () if late else (RankWait(LATE_RANK, 22_800_000), RankWait((rank + 1) % RANKS, 1_100_000))
        per_rank.append(RankAccounting(rank, f"rank{rank}", steps, accounting, waits))
    finding = Finding(
        "straggler",
        Severity.HIGH,
        LATE_RANK,
        22_600_000,
        0.226,
        Confidence.MEASURED,
        "rank 5 is late: all others wait for it 22.6 ms of each traced step of 100 ms (23 %); it waits for its input, "
        "23.0 ms per step more than the others (input-bound on rank 5)",
        (Evidence("what every other rank waits for it, per step", 22_600_000, "ns"),),
        (Place("/srv/jobs/pretrain/data.py", 88, "tokens = self.encode(text)", "__getitem__", 0.97),),
        ("loader-workers",),
    )
    accounting = Accounting(compute=66 * MS, exposed_comm=8 * MS, idle={"input": 23 * MS, "dependency": 3 * MS})
    diagnosis = Diagnosis(
        SCHEMA,
        tuple(one.source for one in per_rank),
        RANKS,
        "NVIDIA H200",
        steps,
        accounting,
        (finding,),
        per_rank=tuple(per_rank),
        has_device=True,
    )
    return [
        *ranks(),
        DiagnosisMade(at_ns=T0 + 20 * NS_PER_S, diagnosis=diagnosis),
        RunEnded(at_ns=T0 + 21 * NS_PER_S, returncode=0, exit_code=0),
    ]
