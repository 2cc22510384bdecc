"""The purpose of each group of ranks, told from what it communicates and when; and the bubble of a pipeline.

    for group in rank_groups(measures): group.role, group.exposed_ns
    pipeline_bubble(measures)        # None where no group is a pipeline's

Data parallelism reduces gradients in or after the backward pass; sharding gathers parameters besides, or scatters the
gradients. Tensor parallelism sums activations in the forward pass too. Experts and embeddings are exchanged all to all.
A pipeline's stages send and receive. Kernels of NCCL's point-to-point calls carry all-to-all as well: without the
recorded arguments nobody can tell which, and then nothing is said.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.comm.collectives import REDUCING, SMALL_BYTES, Phase
from diagnose.trace import Collective
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool

_FEWEST_SUMS = 2  # of activations in a forward pass: one alone may be a loss or a norm


class Role(enum.StrEnum):
    """The purpose of a group of ranks."""

    DATA = "data parallel"
    SHARDED = "sharded data parallel"
    TENSOR = "tensor parallel"
    EXCHANGE = "all to all"
    PIPELINE = "pipeline"
    CONTROL = "small messages"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class RankGroup:
    """One group that a rank belongs to. Times are ns in the mean counted step."""

    role: Role
    name: str | None
    members: tuple[int, ...] | None
    ranks: int
    """-1 where it is not recorded."""
    collectives: dict[str, float]
    """A step, by kind."""
    bytes_per_step: int
    """-1 where not all sizes are recorded."""
    busy_ns: int
    exposed_ns: int
    """The part of its time that no compute hides; waiting for other ranks included."""


@dataclass(frozen=True, slots=True)
class Bubble:
    """The idle time of a pipeline stage, per counted step."""

    stages: int
    microbatches: int
    idle_ns: int
    """The step without compute, and without the exposed collectives of groups other than the pipeline's."""
    share: float
    least_share: float
    """(stages − 1) / (micro-batches + stages − 1): that of an even pipeline whose stages hold one piece of the model
    (Narayanan et al.: Efficient Large-Scale Language Model Training, SC 2021)."""


def rank_groups(measures: Measures) -> tuple[RankGroup, ...]:
    """The groups of a rank's collectives, the one with most exposed time first."""
    comm, steps = measures.communication, max(measures.step_count, 1)
    found = []
    for number in np.unique(comm.group).tolist():
        mine = comm.group == number
        told = _told(measures, mine)
        kinds, count = np.unique(comm.kind[mine], return_counts=True)
        sizes = comm.size_bytes[mine]
        found.append(
            RankGroup(
                role=_role(measures, mine, told is not None),
                name=told.group if told else None,
                members=told.members if told else None,
                ranks=told.group_size if told else MISSING,
                collectives={str(kind): int(often) / steps for kind, often in zip(kinds, count, strict=True)},
                bytes_per_step=int(sizes.sum()) // steps if (sizes >= 0).all() else MISSING,
                busy_ns=_busy(measures, mine).total_ns // steps,
                exposed_ns=(_busy(measures, mine) - measures.compute).total_ns // steps,
            )
        )
    return tuple(sorted(found, key=lambda group: -group.exposed_ns))


def pipeline_bubble(measures: Measures) -> Bubble | None:
    """Return the idle time of this stage; None where it is no stage, or its micro-batches are not known."""
    comm = measures.communication
    stages, pipeline = 0, np.zeros(len(comm), np.bool_)
    for number in np.unique(comm.group).tolist():
        mine = comm.group == number
        told = _told(measures, mine)
        if told is not None and _role(measures, mine, True) is Role.PIPELINE:
            stages = max(stages, told.group_size)
            pipeline |= mine
    begun = measures.backward_passes.begun_by
    passes = begun(measures.steps.host_end_ns) - begun(measures.steps.host_start_ns)
    microbatches = int(np.median(passes)) if len(passes) else 0
    if stages < 2 or not microbatches or not measures.total_ns:
        return None
    others = _busy(measures, ~pipeline) - measures.compute
    busy = measures.accounting.compute + (others & measures.counted).total_ns
    idle = max(measures.total_ns - busy, 0)
    least = (stages - 1) / (microbatches + stages - 1)
    return Bubble(stages, microbatches, idle // measures.step_count, idle / measures.total_ns, least)


def _busy(measures: Measures, mine: Bool) -> Intervals:
    """Return when some of the collectives run; several at once count once."""
    comm = measures.communication
    return Intervals.of_rows(comm, mine)


def _told(measures: Measures, mine: Bool) -> Collective | None:
    """Return what the recording says of one of these collectives."""
    trace = measures.trace
    if not trace.has_device:
        return None
    numbers = trace.device.collective[measures.communication.row[mine]]
    known = numbers[numbers >= 0]
    return trace.collectives[int(known[0])] if len(known) else None


def _role(measures: Measures, mine: Bool, told: bool) -> Role:
    comm = measures.communication
    kinds = set(comm.kind[mine].tolist())
    sizeable = mine & ((comm.size_bytes >= SMALL_BYTES) | (comm.size_bytes == MISSING))
    forward = mine & (comm.phase == Phase.FORWARD) & ~comm.follows_a_pass
    sums = int((forward & np.isin(comm.kind, REDUCING)).sum()) / max(measures.step_count, 1)
    if told and sums >= _FEWEST_SUMS:
        return Role.TENSOR
    if "all_to_all" in kinds:
        return Role.EXCHANGE
    if "send_recv" in kinds:
        return Role.PIPELINE if told else Role.UNKNOWN
    if not sizeable.any():
        return Role.CONTROL
    if (comm.gradients & mine).any():
        scattered = kinds >= {"reduce_scatter"} or "all_gather" in set(comm.kind[sizeable].tolist())
        return Role.SHARDED if scattered else Role.DATA
    return Role.UNKNOWN
