"""The host's side of the replay: which calls matter, in which order they run, and what the waiting ones wait for.

Only calls that launch or wait are nodes; all other host time lies between them as weight. The autograd engine runs
backward passes on a thread of its own while the training thread waits for it: threads that take turns are one line
of program order. A thread that works beside the training thread keeps its own order; where it had been idle, what the
training thread did last has woken it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.measure.steps.full_queue import waits_for_room
from diagnose.measure.steps.idle import REFILL_NS
from diagnose.measure.views.host_activity import calls_of, ops_of, waits_of
from diagnose.measure.views.launches import Launches
from diagnose.measure.views.names import named
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import MISSING, Bool, CopyDirection, Int64, Memory

_FREES = re.compile(r"^(cuda|hip)Free$")
_TURNS = 0.1  # threads of which less than this part of the shorter one's time overlaps take turns
CLOCK_SLACK_NS = 5_000
"""Host and device clocks are aligned by the profiler to a few microseconds: a wait may seem to end before its work."""


@dataclass(frozen=True, eq=False)
class HostNodes:
    """Moments of the host in order, one row each."""

    time_ns: Int64
    """Its time on the trace's clock."""
    call: Int64
    """Row of `trace.calls`."""
    is_end: Bool
    """Whether the call returns here (waits only); else it begins."""
    before: Int64
    """The row of the moment before on the same line of program order, or -1."""
    on_training: Bool
    target: Int64
    """For the end of a wait: the row of device work that it waits for, or -1."""


def host_nodes(trace: Trace, launches: Launches, main: int) -> HostNodes:
    """The moments at which the host launches work or has waited for it."""
    calls = trace.calls
    launching = np.zeros(len(calls), np.bool_)
    launching[launches.call[launches.linked]] = True
    turns = training_threads(trace, launches, main)
    training = np.isin(calls.thread, [*turns, MISSING])
    waiting = (waits_of(trace) | _blocked_launches(trace, launches) | _long_frees(trace)) & training
    rows = np.flatnonzero(launching | waiting)
    ends = np.flatnonzero(waiting)
    target = _targets(trace, launches, ends)
    time = np.concatenate((calls.start_ns[rows], calls.end_ns[ends]))
    call = np.concatenate((rows, ends))
    is_end = np.arange(len(time)) >= len(rows)
    # Of equal moments, ends come first unless the call has no length; calls that nest begin outermost first.
    rank = np.where(is_end, np.where(calls.start_ns[call] < time, 0, 2), 1)
    order = np.lexsort((call, rank, time))
    time, call, is_end = time[order], call[order], is_end[order]
    line = np.where(training[call], MISSING, calls.thread[call])
    wanted = np.full(len(calls), MISSING, np.int64)
    wanted[ends] = target
    return HostNodes(
        time, call, is_end, _before(trace, time, line), line == MISSING, np.where(is_end, wanted[call], MISSING)
    )


def training_threads(trace: Trace, launches: Launches, main: int) -> list[int]:
    """The training thread (`main`) and the threads that launch work while it does nothing: autograd's own."""
    every = np.ones(len(trace.calls), np.bool_)

    def active(threads: set[int]) -> Intervals:
        return ops_of(trace, threads) | calls_of(trace, threads, every)

    chosen = {main} - {MISSING}
    launching = np.unique(trace.calls.thread[launches.call[launches.linked]]).tolist()
    found = [thread for thread in launching if thread not in (main, MISSING)]
    taken = active(chosen) if found else Intervals.empty()
    for thread in found:
        time = active({thread})
        if (time & taken).total_ns <= _TURNS * min(time.total_ns, taken.total_ns):
            chosen.add(thread)
            taken = taken | time
    return sorted(chosen)


def _blocked_launches(trace: Trace, launches: Launches) -> Bool:
    """Launch calls that wait: for room in a full queue, or for a copy from pageable memory to be done."""
    device, linked = trace.device, launches.linked
    blocked = waits_for_room(trace, launches)
    staged = (device.direction == CopyDirection.HOST_TO_DEVICE) & (device.host_memory == Memory.PAGEABLE) & linked
    # It may return while the last piece is still on its way, but not before the device has come to the copy.
    staged &= (device.start_ns <= launches.end_ns) & (launches.end_ns - launches.start_ns > REFILL_NS)
    blocked[launches.call[staged]] = True
    return blocked


def _long_frees(trace: Trace) -> Bool:
    """Calls that give memory back to the device, which first finishes all it has to do."""
    calls = trace.calls
    return named(trace.names, calls.name, _FREES) & (calls.end_ns - calls.start_ns > REFILL_NS)


def _before(trace: Trace, time: Int64, line: Int64) -> Int64:
    """Program order per line. What begins a thread's work after idling was woken by the training thread."""
    before = np.full(len(time), MISSING, np.int64)
    training = np.flatnonzero(line == MISSING)
    before[training[1:]] = training[:-1]
    for one in np.unique(line[line != MISSING]).tolist():
        mine = np.flatnonzero(line == one)
        before[mine[1:]] = mine[:-1]
        busy = ops_of(trace, {one}) | calls_of(trace, {one}, np.ones(len(trace.calls), np.bool_))
        idle_ns = np.diff(time[mine]) - busy.covered(time[mine[:-1]], time[mine[1:]])
        woken = mine[np.concatenate(([True], idle_ns > REFILL_NS))]
        place = np.searchsorted(training, woken) - 1
        waker = training[np.maximum(place, 0)] if len(training) else place
        before[woken] = np.where((place >= 0) & (waker > before[woken]), waker, before[woken])
    return before


def _targets(trace: Trace, launches: Launches, ends: Int64) -> Int64:
    """Per waiting call the device work it waits for: of what was launched before, what ended last before it returned.

    A call that waits for a whole stream cannot return before the last work launched to it: streams whose last work
    ended in time are asked first. Single pieces of work are if there is none, or if it ended too long before the call
    returned to be what it waited for: an event lies between two pieces on a stream that has more to do.
    """
    device = trace.device
    starts, returns = trace.calls.start_ns[ends], trace.calls.end_ns[ends] + CLOCK_SLACK_NS
    # A call may launch what it waits for: its own work counts as launched before.
    stream = device.stream + (device.device.astype(np.int64) << 40)
    launched = launches.linked | (launches.start_ns < device.start_ns)
    target, finish = np.full(len(ends), MISSING, np.int64), np.full(len(ends), -1, np.int64)
    single, single_finish = target.copy(), finish.copy()
    for one in np.unique(stream).tolist():
        rows = np.flatnonzero((stream == one) & launched)
        rows = rows[np.argsort(launches.start_ns[rows], kind="stable")]
        if not len(rows):
            continue
        last = np.searchsorted(launches.start_ns[rows], starts, side="right") - 1
        row = rows[np.maximum(last, 0)]
        hit = (last >= 0) & (device.end_ns[row] <= returns) & (device.end_ns[row] > finish)
        target[hit], finish[hit] = row[hit], device.end_ns[row][hit]
        by_end = rows[np.argsort(device.end_ns[rows], kind="stable")]
        place = np.searchsorted(device.end_ns[by_end], returns, side="right") - 1
        row = by_end[np.maximum(place, 0)]
        hit = (place >= 0) & (launches.start_ns[row] <= starts) & (device.end_ns[row] > single_finish)
        single[hit], single_finish[hit] = row[hit], device.end_ns[row][hit]
    too_early = (finish < returns - REFILL_NS) & (single_finish >= returns - REFILL_NS)
    return np.where((target == MISSING) | (finish < starts) & (single_finish > starts) | too_early, single, target)
