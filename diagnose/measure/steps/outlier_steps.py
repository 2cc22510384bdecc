"""Steps that take much longer than the others: which they are, how regularly they come, and what each costs.

    times = step_times(trace, steps)        # of all steps that a live run logged, else of the counted ones
    stalls_of(times, device_ns)             # those at regular distances; None where there are none
    stalls_within(times, spent_ns)          # those in which something is seen to be done, however the others vary
    exceptional_steps(steps.length_ns)      # those of a recording too short for that
    without_rare_steps(trace, steps)        # the counted ones, of a recording too short to hold a period

Times are integer nanoseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from diagnose.measure.steps.step_marks import training_thread
from diagnose.measure.steps.steps import StepSpans, part_of
from diagnose.measure.views.host_activity import ranges_of
from diagnose.measure.views.names import named
from diagnose.measure.views.noise import standard_deviation
from diagnose.trace import Trace
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Bool, Int64, RangeKind
from diagnose.units import format_ns

LONGER = 0.5
"""A long step exceeds the usual one by this share of it at least, and by"""
DEVIATIONS = 6
"""this many standard deviations, estimated from the median absolute deviation: of normally spread steps, not one in 10⁸
does."""
FEWEST = 3
"""Long steps, of whose distances this part are multiples of the period, within a tenth of it (exactly, where it is
below ten, as any distance is within one step of a multiple of three, or where there are three):"""
REGULAR = 0.75
FEWEST_AMID = 2 * FEWEST
SHORTEST_AMID = 10
"""So many long steps, the same number of steps apart and at least this, are told from others that come at no distance.
They must come in REGULAR of the periods between the first and the last, and be longer than usual by more than all
others together, also without the longest of them: in a long tail a single step outweighs all others. Of logs whose
steps are long by chance, not one in a thousand has such."""
MINORITY = 1 / 3
"""More steps than this are no exceptions, but steps of two kinds."""
CHANCE = 2
"""Standard errors by which steps that are seen to do something exceed the others."""
CATCH_UP = 8
"""Steps after a long one in which a host that had run ahead catches up."""
HALF = 0.5
"""A share of what long steps take beyond the usual: what takes as much is their cause."""
AHEAD = 0.95
"""A host that came round in less than this part of the device's work was ahead: clocks of devices vary by as much, and
so does what a profiler saw of them."""
WARM_UP = 10
"""Steps that are left out at the beginning, as many as a live run waits before it calls steps steady."""

AFTER_WINDOW = 4
"""Steps after the traced ones that say nothing: the profiler stops, waits are sought."""
_PASS = re.compile(r"^DataLoader\.__iter__$")


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Steps one after the other; those that say nothing are not `usable`."""

    start_ns: Int64
    end_ns: Int64
    usable: Bool
    live: bool = False
    """Whether a live run logged them, rather than that they are those of a recording."""

    @property
    def length_ns(self) -> Int64:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class Stalls:
    """Long steps at regular distances."""

    period: int
    """Every how many steps one comes."""
    usual_ns: int
    rows: Int64
    """The long steps, as rows of the step times."""
    cost_ns: Int64
    """Per long step, its excess without what the steps up to the next one fall short of the usual."""


def step_times(trace: Trace, steps: StepSpans) -> StepTimes | None:
    """The logged steps after the first ones, else the counted `steps`; None for too few to hold three periods."""
    ends = np.sort(trace.step_log.end_ns)
    if len(ends) > len(steps) + 1:
        log = StepTimes(ends[:-1], ends[1:], np.arange(1, len(ends)) > min(WARM_UP, len(ends) // 4), live=True)
        if trace.window_ns is not None and len(trace.ops) + len(trace.device):
            # The step before the window opens the profiler, those after it close it and look for waits.
            first, last = np.searchsorted(ends, trace.window_ns)
            at = np.arange(1, len(ends))
            log = replace(log, usable=log.usable & ((at < first - 1) | (at > last + AFTER_WINDOW)))
    else:
        log = StepTimes(steps.start_ns, steps.end_ns, np.ones(len(steps), np.bool_))
    return log if int(log.usable.sum()) >= FEWEST * FEWEST else None


def stalls_of(log: StepTimes, device_ns: int) -> Stalls | None:
    """The steps that stand out at regular distances, with what each costs; None where there are none.

    `device_ns` is what the device needs for a step, 0 where that is not known: no step is usually shorter. A host that
    runs ahead is done with its step in less, and waits for the device in the long one: that costs nothing.
    """
    length = log.length_ns
    deviation = standard_deviation(length[log.usable])
    usual = max(float(np.median(length[log.usable])), device_ns)
    above = length - usual
    rows = np.flatnonzero(log.usable & (above > max(LONGER * usual, DEVIATIONS * deviation)))
    period = _period(rows, log.usable)
    if period is None and len(rows) and rows[0] == 0:
        rows = rows[1:]  # opening the profiler makes a first step long
        period = _period(rows, log.usable)
    if period is None:
        rows, period = _amid_others(rows, above[rows].astype(np.float64))
    if period is None:
        return None
    following = np.append(rows[1:], len(length))
    until = np.minimum(rows + 1 + CATCH_UP, following)
    # Steps vary by chance too: half of them are shorter than the median, normally spread ones by 0.8 σ on average.
    chance = 0.4 * deviation * (until - rows - 1)
    saved = np.maximum(_sum_between(np.where(log.usable, -np.minimum(above, 0), 0), rows + 1, until) - chance, 0)
    # No chance makes a step that much shorter than the device's work: what is below it was waited for, or will be.
    short_ns = np.where(log.usable & (length < AHEAD * device_ns), device_ns - length, 0)
    ahead = _sum_between(short_ns, rows + 1, following)
    cost = np.maximum(above[rows] - np.maximum(saved, ahead), 0).astype(np.int64)
    # Where the log ends, or has a gap, before the next long step: nobody saw all that was caught up after this one.
    enough = np.where(ahead > 0, period - 1, min(CATCH_UP, period - 1))
    seen = _sum_between(log.usable, rows + 1, np.where(ahead > 0, following, until)) >= enough
    cost = np.where(seen, cost, np.minimum(cost, int(np.median(cost[seen])) if seen.any() else 0))
    return Stalls(period, int(usual), rows, cost) if cost.sum() > 0 else None


def stalls_within(log: StepTimes, spent_ns: Int64) -> Stalls | None:
    """The steps at regular distances in which something took `spent_ns`, on a machine where others are as long by
    chance. They cost what it took, at most what they exceed the usual step by, all together; None where that is less
    than chance gives to so many steps.
    """
    rows = np.flatnonzero(log.usable & (spent_ns > 0))
    period = _period(rows, log.usable)
    if period is None:
        return None
    length = log.length_ns
    others = log.usable & (spent_ns == 0)
    usual = float(np.median(length[others]))
    excess = float((length[rows] - usual).sum())
    if excess <= CHANCE * standard_deviation(length[others]) * np.sqrt(len(rows)):
        return None
    spent = spent_ns[rows]
    cost = spent * min(1.0, excess / float(spent.sum()))
    return Stalls(period, int(usual), rows, cost.astype(np.int64))


def _sum_between(values: npt.ArrayLike, starts: Int64, ends: Int64) -> npt.NDArray[np.float64]:
    """Per pair of rows, the sum of the values from the one up to the other."""
    running = np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64))))
    return running[ends] - running[starts]


def _period(rows: Int64, usable: Bool) -> int | None:
    """Every how many steps the chosen ones come; None where they come irregularly, too seldom, or are no exception.

    Of few, the shortest distance is the period where all steps are long that it lets expect and that can be judged: a
    traced window hides some of them. Three come at nearly the same distance by chance in one log of eleven, at exactly
    the same in few.
    """
    if len(rows) < FEWEST:
        return None
    distances = np.diff(rows)
    shortest = int(distances.min())
    expected = int(usable[rows[0] % shortest :: shortest].sum())
    each_time = len(rows) == expected < FEWEST_AMID and bool((distances % shortest == 0).all())
    period = shortest if each_time else int(np.median(distances))
    if period < FEWEST:
        return None
    multiple = np.maximum(np.rint(distances / period), 1)
    off = 0 if len(rows) == FEWEST else period // 10
    regular = np.abs(distances - multiple * period) <= off
    return period if regular.mean() >= REGULAR else None


def _amid_others(rows: Int64, excess: npt.NDArray[np.float64]) -> tuple[Int64, int | None]:
    """Those of the long steps that come at regular distances while others come by chance, as on a shared machine.

    The longest propose the period. Chance seldom puts a step into nearly each one, at the same place, and makes these
    longer together than all others.
    """
    by_length = np.argsort(-excess, kind="stable")
    for part in (1, 2, 4):
        longest = np.sort(rows[by_length[: len(rows) // part]])
        if len(longest) < FEWEST_AMID:
            break
        period = int(np.median(np.diff(longest)))
        if period < SHORTEST_AMID:
            continue
        place = rows % period
        together = np.bincount(place, weights=excess)
        chosen = place == max((longest % period).tolist(), key=together.__getitem__)
        regular = rows[chosen]
        enough = len(regular) >= max(FEWEST_AMID, REGULAR * ((regular[-1] - regular[0]) / period + 1))
        longest_ns = excess[chosen].max()
        if enough and 2 * (excess[chosen].sum() - longest_ns) >= excess.sum() - longest_ns:
            return regular, period
    return rows, None


def exceptional_steps(length: Int64) -> Int64:
    """The rows of steps that stand out by their length; none where they are no exception."""
    if len(length) < FEWEST:
        return np.empty(0, np.int64)
    usual = median_low(length)
    above = length - usual
    rows = np.flatnonzero(above > max(LONGER * usual, DEVIATIONS * 1.4826 * median_low(np.abs(above))))
    # What follows a step's last work counts to the next: one stall may make two steps long.
    stalls = int((np.diff(rows) > 1).sum()) + 1
    few = stalls <= MINORITY * len(length) and 2 * len(rows) <= len(length)
    return rows if few else np.empty(0, np.int64)


def without_rare_steps(trace: Trace, steps: StepSpans) -> StepSpans:
    """The longest run of steps without those that come once in more steps than the window has, as a live run's log
    shows: counted among so few, one would weigh several times what it costs. `periodic-stall` weighs it by the log.

    A step that waits for its loader is no exception: `input-bound` weighs that, also by what it sees here.
    """
    rows = exceptional_steps(steps.length_ns)
    log = step_times(trace, steps) if len(rows) else None
    stalls = stalls_of(log, 0) if log is not None and log.live else None
    on_host = StepTimes(steps.host_start_ns, steps.host_end_ns, np.ones(len(steps), np.bool_))
    if stalls is None or stalls.period <= len(steps):
        return steps
    if is_spent_in(trace, RangeKind.INPUT, on_host, rows, median_low(on_host.length_ns)):
        return steps
    borders = [-1, *rows.tolist(), len(steps)]
    before, after = max(pairwise(borders), key=lambda pair: pair[1] - pair[0])
    if after - before <= 2:
        return steps
    long = format_ns(int(steps.length_ns[rows].max()))
    why = f"a recorded step of {long} is not counted: one in {stalls.period} is so long, as the log of the run shows"
    return part_of(steps, before + 1, after, (why,))


def is_spent_in(trace: Trace, kind: RangeKind, log: StepTimes, long: Int64, usual_ns: float) -> bool:
    """Whether at least half of what the long steps take beyond the usual is spent in ranges of a kind, beyond what the
    median step spends there; not where they take no longer on the host.
    """
    excess_ns = float(log.length_ns[long].sum()) - usual_ns * len(long)
    spent = training_in(trace, kind).covered(log.start_ns, log.end_ns)
    more = float(spent[long].sum()) - float(np.median(spent[log.usable])) * len(long)
    return excess_ns > 0 and more >= HALF * excess_ns


def training_in(trace: Trace, kind: RangeKind) -> Intervals:
    """The time in which the training thread is in ranges of a kind, or is kept by them: a collection of garbage on any
    thread holds the interpreter, but what another one loads or writes keeps nobody."""
    return ranges_of(trace, kind, None if kind is RangeKind.GC else {training_thread(trace)})


def begins_pass(trace: Trace, log: StepTimes) -> Bool:
    """Whether a pass over a loader begins within each step, as the hook on loaders of a live run saw it."""
    rows = (trace.ranges.kind == RangeKind.INPUT) & named(trace.names, trace.ranges.name, _PASS)
    begun = np.sort(trace.ranges.start_ns[rows])
    return np.searchsorted(begun, log.end_ns) > np.searchsorted(begun, log.start_ns)


def median_low(values: Int64) -> int:
    """The median; of an even number, the lesser one of the two: what is to stand out may be half of them."""
    return int(np.sort(values)[(len(values) - 1) // 2])
