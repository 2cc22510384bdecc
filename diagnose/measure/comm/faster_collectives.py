"""How much shorter the counted steps would be if collectives took less time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.comm.rank_collectives import RankCollectives
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import NEGLIGIBLE, scaled_ns
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64


@dataclass(frozen=True, eq=False, slots=True)
class FasterCollectives:
    """The saving of shorter collectives."""

    gain_ns: int
    """The gain over all counted steps together."""
    exposed: Intervals
    """The time that goes, as far as nothing was computed in it."""
    cut: Cut | None
    """The change itself; None without a device."""


def shortened(measures: RankCollectives, from_ns: Int64, to_ns: Int64) -> FasterCollectives:
    """The gain if each collective (a row of `measures.communication`) that takes `from_ns` at its end took `to_ns`.

    Never more than the exposed part of what goes, nor than the replay says where there is one. Where a profiler
    slowed the host, it slowed those of the other ranks as well: then also no more than if no rank waited for another.
    """
    comm = measures.communication
    goes = np.clip(from_ns - to_ns, 0, comm.duration_ns)
    exposed = (Intervals.of(comm.end_ns - to_ns - goes, comm.end_ns - to_ns) - measures.compute) & measures.counted
    most = exposed.total_ns
    if most == 0 or not measures.has_device:
        return FasterCollectives(most, exposed, None)
    scale = np.ones(len(measures.trace.device))
    scale[comm.row] = 1 - goes / np.maximum(comm.duration_ns, 1)
    saved = scaled_ns(measures, scale)
    if saved is not None:
        most = min(most, saved)
        if most > NEGLIGIBLE * measures.total_ns and measures.replay.recording_scale:
            most = min(most, _without_waits_ns(measures, goes))
    return FasterCollectives(most, exposed, Cut(scale=scale))


def _without_waits_ns(measures: RankCollectives, goes: Int64) -> int:
    """Return what shorter transfers give back if every rank arrives in time."""
    comm = measures.communication
    transfer = np.maximum(comm.transfer_ns, 1)
    arrived, shorter = np.ones(len(measures.trace.device)), np.ones(len(measures.trace.device))
    arrived[comm.row] = np.minimum(transfer / np.maximum(comm.duration_ns, 1), 1)
    shorter[comm.row] = np.clip(1 - goes / transfer, 0, 1)
    return measures.replay.saved_ns(Cut(scale=shorter), after=Cut(scale=arrived))
