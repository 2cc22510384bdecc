"""What must be known of one rank to compare it with the others, in some kB: traces stay where they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.activity import calls_of
from diagnose.measure.collectives import CollectiveSequence, Key, sequences_of
from diagnose.measure.full_queue import waits_for_room
from diagnose.model import Accounting
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

QUEUED = "host.queued"
FEWEST_READINGS = 5
"""Of that counter, for a word on it: a reading a second."""


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
    host_ns: int | None = None
    """What the host has to do for a step by itself, whatever its device or its loader does; None without a device."""
    cores_unknown: bool = False
    """It computes on the processor, and nobody recorded how long it waited for a core."""

    @property
    def step_ns(self) -> Int64:
        """The length of each step."""
        return np.asarray(self.step_end_ns - self.step_start_ns, np.int64)


def record_of(measures: Measures) -> RankRecord:
    """What is compared of one rank."""
    sequences = sequences_of(measures.trace)
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
        host_ns=_host_ns(measures),
        cores_unknown=not measures.has_device and _readings(measures, QUEUED) < FEWEST_READINGS,
    )


def _readings(measures: Measures, counter: str) -> int:
    trace = measures.trace
    return int((trace.counters.name == trace.names.index(counter)).sum()) if counter in trace.names else 0


def _recording_ns(measures: Measures) -> int | None:
    if not measures.has_device or measures.step_count == 0 or not measures.replay.recording_scale:
        return None
    steps = Intervals.of(measures.steps.host_start_ns, measures.steps.host_end_ns)
    return measures.replay.records.within(steps, measures.replay.recording_scale) // measures.step_count


def _host_ns(measures: Measures) -> int | None:
    if not measures.has_device or measures.step_count == 0:
        return None
    room = calls_of(measures.trace, measures.training_threads, waits_for_room(measures.trace, measures.launches))
    held = (room - measures.waits).covered(measures.steps.host_start_ns, measures.steps.host_end_ns)
    return int((measures.host_work_ns - held).sum()) // measures.step_count
