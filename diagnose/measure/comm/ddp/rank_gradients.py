"""The gradients that one rank reduces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diagnose.measure.comm.collectives import SMALL_BYTES
from diagnose.measure.comm.communication_waste import Waste
from diagnose.measure.comm.ddp.gradient_buckets import GradientBucket, GradientRounds, gradient_buckets, gradient_rounds
from diagnose.measure.comm.ddp.gradient_sizes import gradient_pieces
from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64


class RankGradients(RankCollectives):
    """The collectives of one rank, with the gradients among them."""

    @cached_property
    def gradient_rounds(self) -> GradientRounds | None:
        """The gradients that each counted step's optimizer waits for; None where none are reduced."""
        return gradient_rounds(self)

    @cached_property
    def gradient_buckets(self) -> tuple[GradientBucket, ...]:
        """The buckets in which they are reduced, in the order of sending."""
        return gradient_buckets(self, self.gradient_rounds)

    @cached_property
    def gradient_pieces(self) -> tuple[Int64, Int64] | None:
        """Sizes and ready times of the gradients that all ranks reduce; None where sizes are not recorded."""
        buckets = [bucket for bucket in self.gradient_buckets if bucket.kind == "all_reduce"]
        known = buckets and min(bucket.size_bytes for bucket in buckets) > 0
        return gradient_pieces(self, buckets, self.gradient_rounds) if known else None

    @cached_property
    def late_gradients(self) -> LateGradients:
        """Gradients that are reduced after the backward pass."""
        return late_gradients(self)


_LEFT = 0.1  # of the backward pass may still run when the first gradients go


@dataclass(frozen=True, eq=False, slots=True)
class LateGradients:
    """The late rounds of all counted steps together."""

    rows: Bool
    """Per row of `measures.communication`."""
    stretches: Intervals
    """The stretches from the first to the last collective of each round, without compute and without waiting for
    other ranks."""
    hidden_ns: Int64
    """Per counted step, how much of its collectives the backward pass before could have hidden."""


def late_gradients(measures: RankCollectives) -> LateGradients:
    """Late rounds; of steps whose backward pass is not known, none."""
    comm = measures.communication
    rows = np.zeros(len(comm), np.bool_)
    hidden = np.zeros(measures.step_count, np.int64)
    stretches = []
    mine = comm.gradients & (measures.exchange.waste != Waste.REPEATED)
    first_pass = measures.backward_passes.begun_by(measures.steps.host_start_ns)
    for step in np.unique(comm.step[mine]).tolist():
        of_step = np.flatnonzero(mine & (comm.step == step))
        of_step = of_step[comm.round[of_step] == comm.round[of_step].max()]
        large = of_step[(comm.size_bytes[of_step] >= SMALL_BYTES) | (comm.size_bytes[of_step] == MISSING)]
        last = int(first_pass[step] + comm.round[of_step[0]]) - 1
        begin, end, compute = _computed(measures, last)
        if not len(large) or end <= begin or comm.start_ns[large].min() < end - _LEFT * (end - begin):
            continue
        rows[of_step] = True
        whole = Intervals.of([comm.start_ns[large].min()], [comm.end_ns[of_step].max()])
        moving = Intervals.of(comm.end_ns[of_step] - comm.transfer_ns[of_step], comm.end_ns[of_step])
        # Waiting for other ranks is not the gradients' doing; the gaps between collectives are.
        waiting = Intervals.of_rows(comm, of_step) - moving
        stretches.append(whole - waiting - measures.compute)
        hidden[step] = compute
    return LateGradients(rows, Intervals.union(stretches) & measures.counted, hidden)


def _computed(measures: RankCollectives, number: int) -> tuple[int, int, int]:
    """Return when the compute of a backward pass began and ended, and how much it was."""
    passes = measures.backward_passes
    if not 0 <= number < len(passes):
        return 0, 0, 0
    begin, end = int(passes.start_ns[number]), int(passes.end_ns[number])
    if measures.has_device:
        launched = measures.launches.start_ns
        work = measures.rows & (launched >= begin) & (launched <= end) & measures.launches.linked
        work &= ~np.isin(measures.classes, (KernelClass.COLLECTIVE, KernelClass.COPY, KernelClass.SET))
        if not work.any():
            return 0, 0, 0
        begin, end = int(measures.trace.device.start_ns[work].min()), int(measures.trace.device.end_ns[work].max())
    return begin, end, int(measures.compute.covered([begin], [end])[0])
