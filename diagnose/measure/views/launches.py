"""Which host call launched which device work, and how far the host was ahead when it did.

The join is by correlation id: a dense table where the ids are dense (they are, in what Kineto writes), else a search.

A recording that opens while the host is ahead holds work whose launch it missed. What runs on a stream before the first
work of known launch was launched earlier than that. Where launches are recorded without gaps, and until the device's
busiest stream has come to work of known launch, that was before the recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Ids, Int64, WorkKind

_COMPLETE = 0.9
"""The share of device work with a known launch, from a point on, in a recording that drops none, or few: 99.8 % or
more in real ones that opened while the host was ahead. Where a launch is missing in each step, the first ones tell
nothing."""

_DENSE = 8  # a dense table may be this many times longer than the rows it joins


@dataclass(frozen=True, eq=False)
class Launches:
    """Per row of device work, the call that launched it."""

    call: Int64
    """Row of `trace.calls`, or -1."""
    start_ns: Int64
    """The begin of the launch call; for unlinked work, that of the work itself, or just before the recording where
    it was launched earlier."""
    end_ns: Int64
    """The end of the launch call; for unlinked work the same as `start_ns`."""

    @property
    def linked(self) -> Bool:
        """Whether the launch of a row is known."""
        return np.asarray(self.call != MISSING, np.bool_)


def launches_of(trace: Trace) -> Launches:
    """The launch of every row of `trace.device`."""
    call = joined(trace.device.correlation, trace.calls.correlation, trace.calls.start_ns)
    if len(trace.calls) == 0:
        return Launches(call, trace.device.start_ns, trace.device.start_ns)
    known = call != MISSING
    unknown_ns = np.where(_launched_earlier(trace, known), _opens_ns(trace) - 1, trace.device.start_ns)
    return Launches(
        call,
        np.where(known, trace.calls.start_ns[call], unknown_ns),
        np.where(known, trace.calls.end_ns[call], unknown_ns),
    )


def _launched_earlier(trace: Trace, known: Bool) -> Bool:
    """Work that a stream did before its first work of known launch, where launches from there on are known."""
    earlier = np.zeros(len(known), np.bool_)
    start, device = trace.device.start_ns, trace.device.device.astype(np.int64)
    stream = trace.device.stream + (device << 40)
    for one in np.unique(stream[~known]).tolist():
        mine = stream == one
        linked = start[mine & known]
        if len(linked):
            until_ns = min(int(linked.min()), _caught_up_ns(trace, known, stream, one >> 40))
            earlier |= mine & ~known & (start < until_ns)
    told = known[~earlier]
    return earlier if len(told) and told.mean() >= _COMPLETE else np.zeros(len(known), np.bool_)


def _caught_up_ns(trace: Trace, known: Bool, stream: Int64, device: int) -> int:
    """Return when the busiest stream of a device comes to its first work of known launch: the queue of before is done.

    What begins on another stream later than that, and has no launch, lost it in the middle of the recording.
    """
    rows = np.flatnonzero(known & (trace.device.device == device))
    streams, counts = np.unique(stream[rows], return_counts=True)
    return int(trace.device.start_ns[rows[stream[rows] == streams[counts.argmax()]]].min())


def _opens_ns(trace: Trace) -> int:
    """Return when the recording's first event begins."""
    tables = (trace.calls, trace.ops, trace.ranges, trace.device)
    return min(int(table.start_ns.min()) for table in tables if len(table))


def joined(wanted: Ids, keys: Ids, order: Int64) -> Int64:
    """Return for each wanted id (positive) the row of `keys` that holds it (of several, the one with the smallest
    `order`), or -1.
    """
    width = np.result_type(wanted, keys)
    wanted, keys = wanted.astype(width, copy=False), keys.astype(width, copy=False)
    rows = np.flatnonzero(keys > 0)
    result = np.full(len(wanted), MISSING, np.int64)
    if len(rows) == 0 or len(wanted) == 0:
        return result
    rows = rows[np.argsort(-order[rows], kind="stable")]  # later writes win below: the earliest call comes last
    low, high = int(keys[rows].min()), int(keys[rows].max())
    if high - low <= _DENSE * (len(rows) + len(wanted)):
        table = np.full(high - low + 1, MISSING, np.int64)
        table[keys[rows] - low] = rows
        inside = (wanted >= low) & (wanted <= high)
        result[inside] = table[wanted[inside] - low]
        return result
    by_key = rows[np.argsort(keys[rows], kind="stable")]
    place = np.searchsorted(keys[by_key], wanted, side="right") - 1
    hit = (place >= 0) & (keys[by_key[np.maximum(place, 0)]] == wanted)
    result[hit] = by_key[place[hit]]
    return result


def queue_depth(trace: Trace, launches: Launches) -> Int64:
    """Per row of device work: how much work had been launched and not yet begun when its own launch call began."""
    begun = np.sort(trace.device.start_ns)
    launched = np.sort(launches.start_ns)
    before = np.searchsorted(launched, launches.start_ns, side="left")
    started = np.searchsorted(begun, launches.start_ns, side="right")
    return np.asarray(np.maximum(before - started, 0), np.int64)


def launch_cost_ns(trace: Trace, launches: Launches) -> int | None:
    """The median time that a launch call of a kernel takes; None where no launch is known."""
    kernels = (trace.device.kind == WorkKind.KERNEL) & launches.linked
    if not kernels.any():
        return None
    return int(np.median((launches.end_ns - launches.start_ns)[kernels]))
