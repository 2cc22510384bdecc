"""Why the device was idle: every gap is cut at the launch of the work that ends it, and each piece gets one cause.

    gap     |------------------------------------------|
    host     loader      Python    launch call
             |--input----|-python--|-launch--|-dependency-|  work begins

Before the launch call the host was late, and what its threads did says why (`diagnose.measure.views.host_activity`).
During the call, the launch itself took the time, as it does for the `LATENCY_NS` in which an idle device comes to begin
what was launched. Otherwise, after the call, the device waited for something else: its own queue, another rank, another
process, or work that was not recorded. A gap whose ending work is of unknown origin is `unknown` except where the
host's records explain it.

When a wait for the device returns, its queue is empty, and issuing the next work shows as idle time however fast the
host is. The pieces of such a refill that are shorter than `REFILL_NS` belong to the wait (`sync`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diagnose.measure.views.host_activity import activity, calls_of, threads_in, waits_of
from diagnose.measure.views.launches import Launches
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, Int64

CAUSES = (
    "input", "sync", "python", "dispatch", "launch", "dependency", "gc", "allocator", "compile", "io", "unknown",
)  # fmt: skip
"""Every cause of idle time, in the order in which tables show them."""

REFILL_NS = 100_000
"""A piece of host work this short, right after a wait, only refills the queue: issuing one operator takes 5 to 50 µs
from Python; what takes longer than twice that is work of its own."""

LATENCY_NS = 20_000
"""An idle device begins 2 to 10 µs after its launch call has returned; within this, the delay is part of launching."""

ISSUE_NS = 1_000_000
"""Issuing one operator takes at most this, under a profiler that records stacks as well (seen: up to 0.6 ms)."""

_CLOCK_SLACK_NS = 5_000
"""Host and device clocks are aligned by the profiler to a few microseconds: a wait may seem to end before its work."""

_REFILL_CAUSES = ("python", "dispatch", "launch", "dependency")


def device_idle(
    trace: Trace, busy: Intervals, launches: Launches, main: int, start: int, end: int
) -> dict[str, Intervals]:
    """The time in [start, end) that is not `busy`, by cause; the sets are disjoint and cover it exactly.

    `main` is the training thread (index into `trace.threads`, or -1).
    """
    gaps = busy.gaps(start, end)
    found: dict[str, list[Intervals]] = {cause: [] for cause in CAUSES}
    ender = _ender(trace, launches, gaps.ends)
    known = ender != MISSING
    call = np.where(known, launches.call[ender], MISSING) if len(launches.call) else np.full(len(gaps), MISSING)
    linked = call != MISSING
    begin = np.where(linked, launches.start_ns[ender], gaps.ends) if known.any() else gaps.ends
    done = np.where(linked, launches.end_ns[ender], gaps.ends) if known.any() else gaps.ends
    begin, done = np.clip(begin, gaps.starts, gaps.ends), np.clip(done, gaps.starts, gaps.ends)
    done = np.where((done > gaps.starts) & (gaps.ends - done <= LATENCY_NS), gaps.ends, done)
    found["launch"].append(Intervals.of(begin, done))
    found["dependency"].append(Intervals.of(done, gaps.ends))
    thread = np.where(linked, trace.calls.thread[call], MISSING) if len(trace.calls) else np.full(len(gaps), MISSING)
    for launcher in threads_in(thread[linked]):
        mine = linked & (thread == launcher)
        _explain(found, trace, {launcher, main} - {MISSING}, Intervals.of(gaps.starts[mine], begin[mine]), "python")
    # After the last recorded work nothing says what comes next; neither does work of unknown origin.
    _explain(found, trace, {main} - {MISSING}, Intervals.of(gaps.starts[~linked], gaps.ends[~linked]), "unknown")
    idle = {cause: Intervals.union(parts) for cause, parts in found.items()}
    return _refills_to_sync(idle, gaps, calls_of(trace, {main, *threads_in(thread)}, waits_of(trace)))


def _ender(trace: Trace, launches: Launches, ends: Int64) -> Int64:
    """The row of device work that begins where each gap ends (of several, the one launched first), or -1."""
    order = np.lexsort((launches.end_ns, launches.start_ns, trace.device.start_ns))
    starts = trace.device.start_ns[order]
    place = np.searchsorted(starts, ends, side="left")
    inside = np.minimum(place, max(len(order) - 1, 0))
    if len(order) == 0:
        return np.full(len(ends), MISSING, np.int64)
    return np.where((place < len(order)) & (starts[inside] == ends), order[inside], MISSING)


def _explain(
    found: Mapping[str, list[Intervals]], trace: Trace, threads: set[int], late: Intervals, otherwise: str
) -> None:
    """Share out time in which the host was late by what its threads did; the rest goes to `otherwise`."""
    if len(late) == 0:
        return
    # An unknown launch leaves open whether the device waited for the host at all: ordinary dispatch explains nothing.
    telling = [
        (cause, times) for cause, times in activity(trace, threads) if otherwise == "python" or cause != "dispatch"
    ]
    for cause, times in telling:
        taken = late & times
        found[cause].append(taken)
        late = late - taken
    found[otherwise].append(late)


def _refills_to_sync(idle: dict[str, Intervals], gaps: Intervals, waits: Intervals) -> dict[str, Intervals]:
    """Move the short pieces that follow a wait within a gap to `sync`."""
    first = np.searchsorted(waits.ends, gaps.starts - _CLOCK_SLACK_NS, side="left")
    has = first < len(waits)
    returned = waits.ends[np.minimum(first, max(len(waits) - 1, 0))] if len(waits) else gaps.ends
    hit: Bool = has & (returned < gaps.ends)
    refill = Intervals.of(np.maximum(returned, gaps.starts)[hit], gaps.ends[hit])
    moved = [idle["sync"]]
    for cause in _REFILL_CAUSES:
        pieces = idle[cause] & refill
        part = pieces - pieces.at_least(REFILL_NS)
        moved.append(part)
        idle[cause] = idle[cause] - part
    idle["sync"] = Intervals.union(moved)
    return idle
