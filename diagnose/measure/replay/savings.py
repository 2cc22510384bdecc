"""How much shorter the counted steps would be if some stretches of time were gone.

Two answers, of which the smaller counts. The accounting: idle time gives back at most its length, as the device could
have worked on; busy time gives back at most its own. And where the unchanged replay lands within 2 % of the measured
time, the replay of the dependency graph (`diagnose.measure.replay.replay`) without them: what else the device would
have had to wait for then. Without a device, or where the replay misses, the accounting answers alone.

    recoverable_ns(measures, stretches)            # idle and busy time gone
    without_waiting_ns(measures, stretches)        # no wait for the device any more
    without_host_ns(measures, host, stretches)     # no such work of the host any more
    gained_ns(measures, cut, at_most_ns)           # any other change; `without_waits`, `sped_up`, `fused` make them
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diagnose.measure.replay.host_waits import HostWaits
from diagnose.measure.replay.replay import Cut
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Float64, Int64

NEGLIGIBLE = 0.001
"""A bound below this part of the steps is not worth a replay: a finding begins at five times as much."""


def recoverable_ns(measures: HostWaits, intervals: Intervals) -> int:
    """Time that all counted steps together would lose without `intervals` and without the waits in them."""
    most = int(measures.per_step(intervals).sum())
    if most and not replayed(measures):
        return max(most - measures.host_excess_ns((intervals & measures.counted) - measures.busy), 0)
    return gained_ns(measures, cut_intervals(measures, intervals), most) if most else 0


def without_waiting_ns(measures: HostWaits, intervals: Intervals) -> int:
    """Return how much shorter the counted steps would be without stretches that are idle because the host waited for
    the device.

    Per step no more than step − max(host work, device work): a host that never waits still has its own work to do,
    without what it did to read values. In the replay all waits return at once, but those that belong to copies from
    pageable memory.
    """
    steps = measures.steps
    read = (measures.value_reads - measures.waits).covered(steps.host_start_ns, steps.host_end_ns)
    room = steps.length_ns - np.maximum(measures.host_work_ns - read, measures.busy_ns)
    most = int(np.minimum(measures.per_step(intervals), np.maximum(room, 0)).sum())
    return gained_ns(measures, without_waits(measures), most) if most else 0


def without_host_ns(measures: HostWaits, host: Intervals, idle: Intervals) -> int:
    """Time that all counted steps together would lose if the host did nothing in `host`, at most what is `idle`.

    Also of what the host does while the device works: coming to the next launch sooner, it is less late there.
    """
    if not replayed(measures):
        return recoverable_ns(measures, host & idle)
    most = min(int(measures.per_step(host).sum()), int(measures.per_step(idle).sum()))
    return gained_ns(measures, Cut(host=host), most)


def scaled_ns(measures: HostWaits, scale: Float64) -> int | None:
    """Time that all counted steps together would lose if each row of device work took `scale` times as long.

    None where the replay is not to be trusted.
    """
    return measures.replay.saved_ns(Cut(scale=scale)) if replayed(measures) else None


def gained_ns(measures: HostWaits, cut: Cut, at_most_ns: int) -> int:
    """Time that all counted steps together would lose under a change, of which the accounting knows an upper bound.

    Where a live run knows the step without a profiler, a change that leaves the device's work as it is saves no more
    of it than the device was idle.
    """
    watched_ns = measures.replay.watched_ns if cut.scale is None and measures.has_device else None
    if watched_ns is not None:
        at_most_ns = min(at_most_ns, max(watched_ns - int(measures.busy_ns.sum()), 0))
    if at_most_ns <= NEGLIGIBLE * measures.total_ns or not replayed(measures):
        return max(at_most_ns, 0)
    return min(at_most_ns, measures.replay.saved_ns(cut))


def untraced_ns(measures: HostWaits) -> int:
    """The length of all counted steps, of which savings are part: without the profiler, where its cost is known."""
    return measures.replay.base_ns if replayed(measures) and measures.replay.recording_scale else measures.total_ns


def replayed(measures: HostWaits) -> bool:
    """Whether the replay answers: there is a device, and unchanged steps come out as they were recorded."""
    return measures.has_device and measures.step_count > 0 and measures.replay.trusted


def cut_intervals(measures: HostWaits, intervals: Intervals) -> Cut:
    """The change that takes stretches of time out, with the waits in them and the work of the device in them."""
    # What lies under device work is that work's own time: the host may well have been ahead of it.
    idle = intervals - measures.busy
    return Cut(host=idle, waits=calls_in(measures, idle), scale=_left(measures, intervals & measures.busy))


def without_waits(measures: HostWaits) -> Cut:
    """The change that lets all waits return at once, but those that belong to copies from pageable memory.

    The operators that wait because they read a value take no time any more.
    """
    return Cut(host=measures.value_reads, waits=~calls_in(measures, measures.pageable_waits))


def sped_up(measures: HostWaits, rows: Int64, left: float | Float64) -> Cut:
    """The change that makes some rows of device work take `left` times as long; 0.0 leaves them out."""
    scale = np.ones(len(measures.trace.device), np.float64)
    scale[rows] = left
    return Cut(scale=scale)


def fused(measures: HostWaits, chains: Sequence[Int64], left: Sequence[float]) -> Cut:
    """The change that makes one kernel of each chain of rows of device work, `left` times as long as the chain: the
    host launches the last one alone."""
    rows = np.concatenate(chains)
    before, last = (np.concatenate([chain[part] for chain in chains]) for part in (np.s_[:-1], np.s_[-1:]))
    ops = np.setdiff1d(measures.op_of_work[before], [MISSING, *measures.op_of_work[last]])
    scale = np.repeat(np.asarray(left, np.float64), [len(chain) for chain in chains])
    return sped_up(measures, rows, scale) | Cut(host=Intervals.of_rows(measures.trace.ops, ops))


def calls_in(measures: HostWaits, intervals: Intervals) -> Bool:
    """Rows of calls that begin or end within some intervals."""
    calls = measures.trace.calls
    return np.asarray(intervals.covered(calls.start_ns, calls.end_ns) > 0, np.bool_)


def _left(measures: HostWaits, intervals: Intervals) -> Float64 | None:
    """Per row of device work, the part of it that lies outside some intervals; None where they hold no work."""
    if len(intervals) == 0:
        return None
    device = measures.trace.device
    length = np.maximum(device.end_ns - device.start_ns, 1)
    inside = np.where(measures.rows, intervals.covered(device.start_ns, device.end_ns), 0)
    return np.asarray(1 - inside / length, np.float64)
