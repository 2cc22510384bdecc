"""The figures of one rank that are compared with other ranks', in some kB: traces stay where they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.job.matching import CollectiveSequence, Key, sequences_of
from diagnose.measure.steps.full_queue import waits_for_room
from diagnose.measure.steps.idle import ISSUE_NS
from diagnose.measure.views.host_activity import ALLOCATIONS, calls_of, loading, on_threads
from diagnose.measure.views.names import named
from diagnose.model import Accounting
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

QUEUED = "host.queued"
FEWEST_READINGS = 5
"""The fewest readings of that counter for a word on it: a reading a second."""
STILL = 0.05
"""A share of the step: what takes longer, with nothing begun in it, may be a wait. Under a profiler that records
stacks, Python takes stretches of 2 to 4 ms in steps of 70 to 95 ms."""


@dataclass(frozen=True, eq=False)
class RankRecord:
    """Steps, accounting and collectives of one rank."""

    rank: int | None
    world_size: int | None
    source: str
    step_start_ns: Int64
    step_end_ns: Int64
    """The counted steps."""
    accounting: Accounting
    """All of them together."""
    sequences: Mapping[Key, CollectiveSequence]
    """The collectives of each group."""
    computing: Intervals
    """Compute beside collectives."""
    flop: float | None = None
    """The arithmetic of a step, as far as shapes were recorded."""
    recording_ns: int | None = None
    """What the profiler's own records cost the host, per step."""
    hosts_ns: Int64 | None = None
    """Per step, what the host has surely to do by itself, without all that is or may be a wait: for its device, its
    loader, or another rank; None without a device."""
    hosts_most_ns: Int64 | None = None
    """Per step, the same with what may be a wait, as it is of a rank that waits for no other."""
    queue_unknown: bool = False
    """Whether nobody recorded how long the rank waited for a core."""
    cores_unknown: bool = False
    """Whether the rank computes on the processor, and nobody recorded how long it waited for a core."""

    @property
    def step_ns(self) -> Int64:
        """The length of each step."""
        return np.asarray(self.step_end_ns - self.step_start_ns, np.int64)


def record_of(measures: Measures) -> RankRecord:
    """Return the figures of one rank that are compared with other ranks'."""
    sequences = sequences_of(measures.trace)
    least, most = _hosts_ns(measures)
    queue_unknown = len(measures.trace.counter(QUEUED)) < FEWEST_READINGS
    within = Intervals.union(Intervals.of(one.start_ns, one.end_ns) for one in sequences.values())
    return RankRecord(
        rank=measures.trace.rank,
        world_size=measures.trace.world_size,
        source=measures.trace.source,
        step_start_ns=measures.steps.start_ns,
        step_end_ns=measures.steps.end_ns,
        accounting=measures.accounting,
        sequences=sequences,
        computing=measures.compute & within,
        flop=None if measures.step_work is None else float(measures.step_work.flops_per_step),
        recording_ns=_recording_ns(measures),
        hosts_ns=least,
        hosts_most_ns=most,
        queue_unknown=queue_unknown,
        cores_unknown=not measures.has_device and queue_unknown,
    )


def _recording_ns(measures: Measures) -> int | None:
    if not measures.has_device or measures.step_count == 0 or not measures.replay.recording_scale:
        return None
    steps = Intervals.of(measures.steps.host_start_ns, measures.steps.host_end_ns)
    return measures.replay.records.within(steps, measures.replay.recording_scale) // measures.step_count


def _hosts_ns(measures: Measures) -> tuple[Int64, Int64] | tuple[None, None]:
    """Return what the host has to do for each step: surely, and at most."""
    if not measures.has_device or measures.step_count == 0:
        return None, None
    trace, threads = measures.trace, measures.training_threads
    room = waits_for_room(trace, measures.launches)
    allocating = named(trace.names, trace.calls.name, ALLOCATIONS)
    waits = Intervals.union((measures.waits, measures.pageable_waits, calls_of(trace, threads, room)))
    may_wait = (loading(trace, {measures.thread}), calls_of(trace, threads, allocating), _still(measures))
    starts, ends = measures.steps.host_start_ns, measures.steps.host_end_ns
    return (
        np.asarray(ends - starts - Intervals.union((waits, *may_wait)).covered(starts, ends), np.int64),
        np.asarray(ends - starts - waits.covered(starts, ends), np.int64),
    )


def _still(measures: Measures) -> Intervals:
    """Stretches in which training begins and ends nothing, too long for what goes on between two operators.

    The host may wait in them for another rank in what no call shows: a collective of the processor, polling, a lock.
    """
    ops, calls, threads = measures.trace.ops, measures.trace.calls, measures.training_threads
    my_ops, my_calls = on_threads(ops.thread, threads), on_threads(calls.thread, threads)
    seen = (ops.start_ns[my_ops], ops.end_ns[my_ops], calls.start_ns[my_calls], calls.end_ns[my_calls])
    marks = np.sort(np.concatenate((*seen, measures.steps.host_start_ns, measures.steps.host_end_ns)))
    long = np.diff(marks) > max(ISSUE_NS, STILL * measures.mean_ns)
    return Intervals.of(marks[:-1][long], marks[1:][long])
