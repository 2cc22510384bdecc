"""The device's side of the replay: what each piece of work waited for before it began.

Three things can hold work back: its launch, the work before it on its stream, and work on other streams that its own
was told to wait for. The last is not recorded everywhere; it is inferred only where neither of the others explains
the start and work on another stream, launched earlier, ended right before. Where none ended, but the device had been
busy on another stream all along, there was no room: then it began so long after the work before on that stream.
Whichever came last carries the whole delay as observed, as far as the device's latency can explain it; the others
carry what is typical of this recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.measure.steps.idle import LATENCY_NS
from diagnose.measure.views.launches import Launches
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, DeviceWork, Int64

GAP_NS = 1_000
"""The gap between two kernels queued on one stream, where the recording has no such pair to measure: 0.8 to 2 µs are
seen."""

_CROSS_NS = 2_000  # an unexplained delay below this is no wait for another stream
_CANDIDATES = 4  # pieces of work that ended last before, of which one may be what another stream waited for


@dataclass(frozen=True, eq=False)
class DeviceEdges:
    """Per row of device work, what it waited for; delays do not include the work itself."""

    before: Int64
    """The row before on its stream, or -1."""
    gap_ns: Int64
    other: Int64
    """The row on another stream, or -1."""
    other_ns: Int64
    lag_ns: Int64
    """The time from the beginning of the launch call."""


def device_edges(trace: Trace, launches: Launches) -> DeviceEdges:
    """Return the edges of the replay graph that end at each piece of device work."""
    device = trace.device
    before = _before(device)
    has, linked = before != MISSING, launches.linked
    ended = np.where(has, device.end_ns[before], 0) if len(before) else before
    gap, lag = device.start_ns - ended, device.start_ns - launches.start_ns
    queued = has & linked & (launches.end_ns + LATENCY_NS <= ended) & (gap <= LATENCY_NS)
    usual_gap = np.minimum(gap, int(np.median(gap[queued])) if queued.any() else GAP_NS)
    usual_lag = np.minimum(lag, _usual_lag(device, lag, linked & _on_idle(device, launches)))
    by_stream = np.where(has, ended + usual_gap, np.iinfo(np.int64).min)
    by_launch = np.where(linked, launches.start_ns + usual_lag, np.iinfo(np.int64).min)
    other = _other(device, launches, np.maximum(by_stream, by_launch))
    waited = other != MISSING
    host_bound = linked & ~waited & (by_launch >= by_stream)
    stream_bound = ~waited & ~host_bound
    call = np.maximum(launches.end_ns - launches.start_ns, usual_lag)
    return DeviceEdges(
        before,
        np.where(stream_bound, np.minimum(gap, LATENCY_NS), usual_gap),
        other,
        np.where(waited, device.start_ns - device.end_ns[other], 0) if len(other) else other,
        # What the first work of a stream waited for may lie before the recording.
        np.where(host_bound, np.where(has, np.minimum(lag, call + LATENCY_NS), lag), usual_lag),
    )


def _before(device: DeviceWork) -> Int64:
    """The work before on each stream. Where two overlap by more than a half, they ran side by side.

    Unless the second began in the latter half of the first and outlasted it: since Hopper a kernel may begin while the
    last blocks of the one before still run (programmatic dependent launch).
    """
    before = np.full(len(device), MISSING, np.int64)
    stream = device.stream + (device.device.astype(np.int64) << 40)
    for one in np.unique(stream).tolist():
        rows = np.flatnonzero(stream == one)
        rows = rows[np.lexsort((device.end_ns[rows], device.start_ns[rows]))]
        start, end = device.start_ns[rows], device.end_ns[rows]
        length = end - start
        before[rows[1:]] = rows[:-1]
        overlap = end[:-1] - start[1:]
        followed = (2 * overlap <= length[:-1]) & (end[1:] >= end[:-1])
        beside = np.flatnonzero((2 * overlap > np.minimum(length[:-1], length[1:])) & ~followed) + 1
        if len(beside):
            order = np.argsort(end, kind="stable")
            place = np.searchsorted(end[order], start[beside], side="right") - 1
            found = np.where(place >= 0, rows[order[np.maximum(place, 0)]], MISSING)
            before[rows[beside]] = np.where(found == rows[beside], MISSING, found)
    return before


def _on_idle(device: DeviceWork, launches: Launches) -> Bool:
    """Work that was launched while no stream had any, and soon began: nothing else held it back."""
    order = np.argsort(device.start_ns, kind="stable")
    reach = np.maximum.accumulate(device.end_ns[order])
    running = np.searchsorted(device.start_ns[order], launches.start_ns, side="right") - 1
    idle = (running < 0) | (reach[np.maximum(running, 0)] <= launches.start_ns)
    return np.asarray(idle & (device.start_ns - launches.end_ns <= LATENCY_NS), np.bool_)


def _usual_lag(device: DeviceWork, lag: Int64, awaited: Bool) -> Int64:
    """Per row, how long after its launch began work of its kind begins on an idle device."""
    usual = np.full(len(device), LATENCY_NS, np.int64)
    kind = device.kind.astype(np.int64) * 2 + (device.graph != MISSING)
    for one in np.unique(kind).tolist():
        mine = kind == one
        if (mine & awaited).any():
            usual[mine] = int(np.median(lag[mine & awaited]))
    return usual


def _other(device: DeviceWork, launches: Launches, ready_ns: Int64) -> Int64:
    """The work on another stream that ended right before work which otherwise could have begun well before."""
    other = np.full(len(device), MISSING, np.int64)
    late = np.flatnonzero(device.start_ns - ready_ns > _CROSS_NS)
    if not len(late):
        return other
    order = np.argsort(device.end_ns, kind="stable")
    place = np.searchsorted(device.end_ns[order], device.start_ns[late], side="right") - 1
    for back in range(_CANDIDATES):
        near = order[np.maximum(place - back, 0)]
        hit = (place >= back) & (other[late] == MISSING) & (near != late)
        hit &= (device.stream[near] != device.stream[late]) | (device.device[near] != device.device[late])
        hit &= device.end_ns[near] > ready_ns[late]
        hit &= device.start_ns[late] - device.end_ns[near] <= LATENCY_NS
        # Work of unknown launch may have been launched early enough.
        hit &= (launches.start_ns[near] <= launches.start_ns[late]) | ~launches.linked[near]
        other[late[hit]] = near[hit]
    late = late[other[late] == MISSING]
    other[late] = _crowded_out(device, late, ready_ns[late])
    return other


def _crowded_out(device: DeviceWork, late: Int64, ready_ns: Int64) -> Int64:
    """For work that could have begun sooner, had not others filled the device: what ended before on their stream."""
    found = np.full(len(late), MISSING, np.int64)
    start = device.start_ns[late]
    stream = device.stream + (device.device.astype(np.int64) << 40)
    for one in np.unique(stream).tolist() if len(late) else ():
        rows = np.flatnonzero(stream == one)  # by start
        reach = np.maximum.accumulate(device.end_ns[rows])
        last = np.searchsorted(device.start_ns[rows], start, side="left") - 1
        running = (last >= 0) & (reach[np.maximum(last, 0)] > start) & (stream[late] != one)
        by_end = rows[np.argsort(device.end_ns[rows], kind="stable")]
        place = np.searchsorted(device.end_ns[by_end], start, side="right") - 1
        before = by_end[np.maximum(place, 0)]
        # Busy from there on: what runs now followed at once, and work that is ready found it there.
        since = device.start_ns[rows[np.maximum(last, 0)]]
        hit = running & (place >= 0) & (since - device.end_ns[before] <= LATENCY_NS)
        hit &= (since <= ready_ns) | (device.end_ns[before] > ready_ns)
        found = np.where(hit & (found == MISSING), before, found)
    return found
