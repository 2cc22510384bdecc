"""The buckets in which a backward pass reduces its gradients: when each was ready, sent, done, and what of it shows.

    buckets = measures.gradient_buckets
    buckets[0].ready_ns          # after the backward pass began to compute, in the median step

Counted is the last round of gradients of each step, the one that an optimizer step waits for. A bucket is ready when
the last work that the host launched before its collective has ended (on the host: when the collective was called); it
starts when this rank arrives at the collective, and ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.trace.schema import Bool, Int64


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """One bucket in the median step. Moments are ns since the backward pass began to compute."""

    kind: str
    size_bytes: int
    """-1 where it is not recorded."""
    ready_ns: int
    start_ns: int
    end_ns: int
    transfer_ns: int
    """The part of its duration that the fastest of its size takes: the rest is waiting for other ranks."""
    exposed_ns: int
    """The part of its duration that no compute hides; while several are sent at once, of the one that began first."""
    tail_ns: int
    """The part of the exposed time after the backward pass has computed everything."""


@dataclass(frozen=True, eq=False, slots=True)
class GradientRounds:
    """The rounds of gradients that have the usual number of collectives, one of each counted step at most."""

    rows: Int64
    """Round × bucket: rows of `measures.communication`."""
    passes: Int64 | None
    """Rows of `measures.backward_passes`, whose gradients they are; None where passes are not known."""
    begin_ns: Int64
    """The times at which each backward pass began to compute, and ended."""
    end_ns: Int64

    @property
    def computes_ns(self) -> int:
        """How long the median backward pass computes."""
        return int(np.median(self.end_ns - self.begin_ns))

    @staticmethod
    def ready_ns(measures: RankCollectives, issued_ns: Int64) -> Int64:
        """Return when the work launched before each moment of the host had ended; the moment itself without a
        device."""
        work, launched = _compute_rows(measures)
        if not len(work):
            return issued_ns
        ends = np.maximum.accumulate(measures.trace.device.end_ns[work])
        last = np.searchsorted(launched, issued_ns, side="right") - 1
        return np.where(last >= 0, np.maximum(ends[np.maximum(last, 0)], issued_ns), issued_ns)


def gradient_rounds(measures: RankCollectives) -> GradientRounds | None:
    """The rounds of the steps that have the usual number of collectives; None without any."""
    rounds = [found for step in range(measures.step_count) if len(found := _last_round(measures, step))]
    if not rounds:
        return None
    counts, often = np.unique([len(one) for one in rounds], return_counts=True)
    usual = int(counts[often.argmax()])
    rows = np.stack([one for one in rounds if len(one) == usual])
    comm, passes = measures.communication, measures.backward_passes
    number = np.maximum(passes.begun_by(comm.issued_ns[rows][:, -1]) - 1, 0) if len(passes) else None
    return GradientRounds(rows, number, *_computing(measures, rows, number))


def gradient_buckets(measures: RankCollectives, rounds: GradientRounds | None) -> tuple[GradientBucket, ...]:
    """The buckets in the order in which they are sent; of steps with different numbers of them, the usual one."""
    if rounds is None:
        return ()
    comm = measures.communication
    rows, begin, end = rounds.rows, rounds.begin_ns, rounds.end_ns
    start, stop = comm.start_ns[rows], comm.end_ns[rows]
    # Per round and bucket, from when on no bucket before it is sent any more: no time counts twice
    before = np.concatenate((start[:, :1], np.maximum.accumulate(stop, axis=1)[:, :-1]), axis=1)
    alone = np.asarray(np.minimum(np.maximum(start, before), stop), np.int64)
    after = np.maximum(alone, end[:, None])
    columns = {
        # What was sent had been ready: kernels beside it on other streams may have begun before and end later.
        "ready_ns": np.minimum(rounds.ready_ns(measures, comm.issued_ns[rows]), start) - begin[:, None],
        "start_ns": start - begin[:, None],
        "end_ns": stop - begin[:, None],
        "transfer_ns": np.minimum(comm.transfer_ns[rows], stop - start),
        "exposed_ns": _exposed(measures, alone, stop),
        "tail_ns": _exposed(measures, after, np.maximum(stop, after)),
    }
    middle = {name: np.median(values, axis=0).astype(np.int64) for name, values in columns.items()}
    return tuple(
        GradientBucket(
            kind=str(comm.kind[rows[0, place]]),
            size_bytes=int(np.median(comm.size_bytes[rows[:, place]])),
            **{name: int(values[place]) for name, values in middle.items()},
        )
        for place in range(rows.shape[1])
    )


def _exposed(measures: RankCollectives, begin: Int64, end: Int64) -> Int64:
    """The part of each stretch that no compute hides."""
    hidden = measures.compute.covered(begin.reshape(-1), end.reshape(-1)).reshape(begin.shape)
    return np.asarray(end - begin - hidden, np.int64)


def _last_round(measures: RankCollectives, step: int) -> Int64:
    """The gradient collectives of a step's last backward pass, in the order in which they were issued."""
    comm = measures.communication
    mine = np.flatnonzero(comm.gradients & (comm.step == step))
    if not len(mine):
        return mine
    mine = mine[comm.round[mine] == comm.round[mine].max()]
    return np.asarray(mine[np.argsort(comm.issued_ns[mine], kind="stable")], np.int64)


def _computing(measures: RankCollectives, rows: Int64, number: Int64 | None) -> tuple[Int64, Int64]:
    """Per round, when the backward pass of that number began and ended to compute."""
    comm, passes = measures.communication, measures.backward_passes
    if number is None:
        begin = comm.start_ns[rows].min(axis=1)
        return begin, begin
    begin, end = passes.start_ns[number], passes.end_ns[number]
    if not measures.has_device:
        return begin, end
    work, launched = _compute_rows(measures)
    device = measures.trace.device
    first = np.minimum(np.searchsorted(launched, begin, side="left"), max(len(work) - 1, 0))
    last = np.maximum(np.searchsorted(launched, end, side="right") - 1, first)
    if not len(work):
        return begin, end
    ends = np.maximum.accumulate(device.end_ns[work])
    return device.start_ns[work][first], ends[last]


def _compute_rows(measures: RankCollectives) -> tuple[Int64, Int64]:
    """Kernels other than collectives in the order in which the host launched them, and when it did."""
    if not measures.has_device:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    chosen: Bool = measures.rows & measures.launches.linked
    chosen &= ~np.isin(measures.classes, (KernelClass.COLLECTIVE, KernelClass.COPY, KernelClass.SET))
    rows = np.flatnonzero(chosen)
    launched = measures.launches.start_ns[rows]
    order = np.argsort(launched, kind="stable")
    return np.asarray(rows[order], np.int64), launched[order]
