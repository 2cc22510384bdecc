"""Every k-th step takes much longer than the others.

What it finds
    Steps that stand out by their length and come at regular distances: writing a checkpoint, an evaluation, logging,
    the start of an epoch. It says every how many steps, what they cost on average, and what happens in them.

Why it costs
    What happens every 100th step costs a hundredth of its length in each. Short recordings rarely hold one, so that it
    goes unnoticed in profiles.

What proves it
    The log of all steps of a live run, else the counted steps of a long recording: lengths far above the median at
    regular distances, three times at least. Where the host had run ahead, it catches up in the steps that follow, which
    are shorter then: what they save is taken off. Recorded ranges (checkpoints, loader waits, collections, compiling)
    and stack samples inside the long steps say what happens in them. Steps while the profiler was at work are left out.

    Waits for the loader every few steps are bursts of its workers, which is `input-bound`; compiling is `recompiling`.

    A short recording may hold a single long step. It is an ailment where what makes it long is what a steady step has
    not: Python, waits, files and copies to the host, while the device does nothing else. How often such a step comes is
    not known then, and the figure is a bound.

What fixes it
    Writing checkpoints in the background (`async-checkpoint`); workers that live on between epochs
    (`persistent-workers`).

Thresholds
    LONGER (half): a long step exceeds the median by this share of it, and by
    DEVIATIONS (6) standard deviations, estimated from the median absolute deviation: of normally spread steps, not one
    in 10⁸ does.
    FEWEST (3) long steps, of whose distances REGULAR (three in four) are multiples of the period, within a tenth.
    MINORITY (a third): more steps than this are no exceptions, but steps of two kinds.
    CATCH_UP (8): steps in which the host may catch up.
    WARM_UP (10): steps that are left out at the beginning, as many as a live run waits before it calls steps steady.
    BURST (16): a period up to this, in which the loader is waited for, is that of its workers taking turns.
    MOST (half): what explains this part of the excess is named as its cause.
    SMALLEST_BYTES (1 MiB): copies to the host that are more than a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    CopyDirection,
    Evidence,
    Int64,
    Intervals,
    Measures,
    Place,
    RangeKind,
    Rule,
    StepLog,
    drawn,
    format_bytes,
    format_ns,
)

LONGER = 0.5
DEVIATIONS = 6
FEWEST = 3
REGULAR = 0.75
MINORITY = 1 / 3
CATCH_UP = 8
WARM_UP = 10
BURST = 16
MOST = 0.5
SMALLEST_BYTES = 1 << 20

_AFTER_WINDOW = 4  # steps after the traced ones: the profiler stops, waits are sought
_HOST_CAUSES = ("python", "io", "sync", "unknown")
_CAUSES = (
    (RangeKind.CHECKPOINT, "a checkpoint is written", ("async-checkpoint",)),
    (RangeKind.INPUT, "the loader is waited for, as when an epoch starts", ("persistent-workers", "loader-workers")),
    (RangeKind.COMPILE, "", ()),
    (RangeKind.GC, "Python collects garbage", ("gc-schedule",)),
)


@dataclass(frozen=True, eq=False)
class _Log:
    """Steps one after the other; those that say nothing are not `usable`."""

    start_ns: Int64
    end_ns: Int64
    usable: np.typing.NDArray[np.bool_]
    live: bool = False
    """Whether a live run logged them, rather than that they are those of a recording."""

    @property
    def length_ns(self) -> Int64:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, eq=False)
class _Stalls:
    period: int
    usual_ns: int
    rows: Int64
    cost_ns: Int64
    """Per long step, its excess without what the following steps catch up."""


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Long steps at regular distances, and what happens in them; in a short recording, a single one."""
    log = _log(measures)
    if log is None or not log.live:
        alone = _alone(measures) if log is None or _stalls(measures, log) is None else None
        if alone is not None:
            yield alone
            return
    if log is None:
        yield CannotTell("periodic-stall", "the lengths of many steps: a live run (diagnose run) logs every step")
        return
    stalls = _stalls(measures, log)
    if stalls is None:
        return
    long = Intervals.of(log.start_ns[stalls.rows], log.end_ns[stalls.rows])
    kind, cause, fixers = _cause(measures, log, stalls)
    if kind is RangeKind.COMPILE or (kind is RangeKind.INPUT and stalls.period <= BURST):
        return
    per_step = int(stalls.cost_ns.sum()) // int(log.usable.sum())
    inside = Intervals.empty() if kind is None else _ranges(measures, kind) & long
    claims, gain = _within_counted(measures, _exceptions(measures), int(np.median(stalls.cost_ns)))
    length = float(np.median(log.length_ns[stalls.rows]))
    yield Claim(
        summary=f"one step in {stalls.period} takes {format_ns(length)} instead of {format_ns(stalls.usual_ns)}, "
        f"{format_ns(per_step)} per step on average{f': {cause}' if cause else ''}",
        recoverable_ns=min(gain, per_step * measures.step_count),
        claims=claims,
        unseen_ns=0 if gain else per_step,
        evidence=[
            Evidence("long steps", len(stalls.rows), "count"),
            Evidence("steps looked at", int(log.usable.sum()), "count"),
            Evidence("median step", stalls.usual_ns, "ns"),
            Evidence("median excess", int(np.median(stalls.cost_ns)), "ns"),
        ],
        where=measures.places(inside) or _standing_out(measures, log, stalls),
        fixers=fixers,
    )


def _alone(measures: Measures) -> Claim | None:
    """The long steps of a recording too short for a period, if what makes them long is no work of a steady step."""
    rows = _exceptions(measures)
    if not len(rows) or not measures.has_device:
        return None
    length = measures.steps.length_ns
    usual = _usual(length)
    apart = _apart(measures)
    spent = measures.per_step(apart)
    more = spent[rows] - _usual(np.delete(spent, rows))
    if more.sum() < MOST * (length[rows] - usual).sum():
        return None
    claims, gain = _within_counted(measures, rows, int(length[rows].max()))
    copied = _copied(measures, rows)
    count, steps = len(rows), measures.step_count
    return Claim(
        summary=f"{count} of the {steps} recorded steps {'takes' if count == 1 else 'take'} "
        f"{format_ns(float(np.median(length[rows])))} instead of {format_ns(usual)}, in which the device "
        f"waits{f' and {format_bytes(copied)} are copied to the host' if copied else ''}",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        evidence=[
            Evidence("long steps", count, "count"),
            Evidence("steps looked at", steps, "count"),
            Evidence("median step", usual, "ns"),
            Evidence("median excess", int(np.median(length[rows])) - usual, "ns"),
        ],
        where=measures.places(claims),
        fixers=("async-checkpoint",) if copied else (),
        confirm="how often such a step comes: a live run (diagnose run) logs every step",
    )


def _exceptions(measures: Measures) -> Int64:
    """The counted steps that stand out by their length; none where they are no exception."""
    length = measures.steps.length_ns
    if len(length) < FEWEST:
        return np.empty(0, np.int64)
    usual = _usual(length)
    above = length - usual
    rows = np.flatnonzero(above > max(LONGER * usual, DEVIATIONS * 1.4826 * _usual(np.abs(above))))
    # What follows a step's last work counts to the next: one stall may make two steps long.
    stalls = int((np.diff(rows) > 1).sum()) + 1
    few = stalls <= MINORITY * len(length) and 2 * len(rows) <= len(length)
    return rows if few else np.empty(0, np.int64)


def _usual(values: Int64) -> int:
    """The median; of an even number, the lesser one of the two: what is to stand out may be half of them."""
    return int(np.sort(values)[(len(values) - 1) // 2])


def _apart(measures: Measures) -> Intervals:
    """Time in which the device waits for what is no part of training, or does nothing but copy to the host."""
    copies = measures.rows_within_steps(measures.trace.device.direction == CopyDirection.DEVICE_TO_HOST)
    return measures.idle_of(*_HOST_CAUSES) | (measures.time_of(copies) - measures.compute - measures.comm)


def _copied(measures: Measures, rows: Int64) -> int:
    """Bytes that a long step copies to the host, where they are what fills most of it."""
    device = measures.trace.device
    copies = measures.rows_within_steps((device.direction == CopyDirection.DEVICE_TO_HOST) & (device.size_bytes > 0))
    step = np.searchsorted(measures.steps.start_ns, device.start_ns[copies], side="right") - 1
    size = np.bincount(step, weights=device.size_bytes[copies], minlength=measures.step_count)
    more = float(np.median(size[rows])) - float(np.median(np.delete(size, rows)))
    return int(more) if more >= SMALLEST_BYTES else 0


def _within_counted(measures: Measures, rows: Int64, most_ns: int) -> tuple[Intervals, int]:
    """The time of long counted steps that is to be had back, and how much of it, at most so much in each."""
    if not len(rows):
        return Intervals.empty(), 0
    starts, ends, length = measures.steps.start_ns[rows], measures.steps.end_ns[rows], measures.steps.length_ns
    excess = np.minimum(length[rows] - _usual(length), most_ns)
    apart = _apart(measures) & Intervals.of(starts, ends)
    inside = apart.covered(starts, ends)
    if measures.has_device and inside.sum() >= MOST * excess.sum():
        return apart, int(np.minimum(inside, excess).sum())
    claims = Intervals.of(ends - excess, ends)
    return claims, claims.total_ns


def _log(measures: Measures) -> _Log | None:
    """The logged steps after the first ones, else the counted ones; None for too few to hold three periods."""
    trace, steps = measures.trace, measures.steps
    ends = np.sort(trace.step_log.end_ns)
    if len(ends) > len(steps) + 1:
        log = _Log(ends[:-1], ends[1:], np.arange(1, len(ends)) > min(WARM_UP, len(ends) // 4), live=True)
        if trace.window_ns is not None and len(trace.ops) + len(trace.device):
            # The step before the window opens the profiler, those after it close it and look for waits.
            first, last = np.searchsorted(ends, trace.window_ns)
            at = np.arange(1, len(ends))
            log = replace(log, usable=log.usable & ((at < first - 1) | (at > last + _AFTER_WINDOW)))
    else:
        log = _Log(steps.start_ns, steps.end_ns, np.ones(len(steps), np.bool_))
    return log if int(log.usable.sum()) >= FEWEST * FEWEST else None


def _stalls(measures: Measures, log: _Log) -> _Stalls | None:
    """The steps that stand out at regular distances, with what each costs; None where there are none."""
    length = log.length_ns
    usual = float(np.median(length[log.usable]))
    deviation = 1.4826 * float(np.median(np.abs(length[log.usable] - usual)))
    if measures.has_device and measures.step_count:
        # A host that runs ahead is done with a step long before the device is.
        usual = max(usual, float(np.median(measures.busy_ns)))
    above = length - usual
    rows = np.flatnonzero(log.usable & (above > max(LONGER * usual, DEVIATIONS * deviation)))
    period = _period(rows)
    if period is None and len(rows) and rows[0] == 0:
        rows = rows[1:]  # opening the profiler makes a first step long
        period = _period(rows)
    if period is None:
        return None
    short = np.where(log.usable, np.minimum(above, 0), 0)
    caught_up = np.concatenate(([0.0], np.cumsum(short)))
    until = np.minimum(np.minimum(rows + 1 + CATCH_UP, np.append(rows[1:], len(length))), len(length))
    # Steps vary by chance too: half of them are shorter than the median, normally spread ones by 0.8 σ on average.
    chance = 0.4 * deviation * (until - rows - 1)
    saved = np.maximum(caught_up[rows + 1] - caught_up[until] - chance, 0)
    cost = np.maximum(above[rows] - saved, 0).astype(np.int64)
    # A long step at the very end: nobody saw what was caught up after it.
    seen = until - rows - 1 >= min(CATCH_UP, period - 1)
    cost = np.where(seen, cost, np.minimum(cost, int(np.median(cost[seen])) if seen.any() else 0))
    return _Stalls(period, int(usual), rows, cost) if cost.sum() > 0 else None


def _period(rows: Int64) -> int | None:
    """Every how many steps the chosen ones come; None where they come irregularly, too seldom, or are no exception."""
    if len(rows) < FEWEST:
        return None
    distances = np.diff(rows)
    period = int(np.median(distances))
    if period < FEWEST:
        return None
    multiple = np.maximum(np.rint(distances / period), 1)
    regular = np.abs(distances - multiple * period) <= max(1, 0.1 * period)
    return period if regular.mean() >= REGULAR else None


def _cause(measures: Measures, log: _Log, stalls: _Stalls) -> tuple[RangeKind | None, str, tuple[str, ...]]:
    """What takes up most of the excess, beyond what it takes of the usual steps."""
    excess = float(log.length_ns[stalls.rows].sum()) - stalls.usual_ns * len(stalls.rows)
    for kind, words, fixers in _CAUSES:
        spent = _ranges(measures, kind).covered(log.start_ns, log.end_ns)
        more = float(spent[stalls.rows].sum()) - float(np.median(spent[log.usable])) * len(stalls.rows)
        if more >= MOST * excess:
            return kind, words, fixers
    return None, "", ()


def _standing_out(measures: Measures, log: _Log, stalls: _Stalls) -> list[Place]:
    """Lines that take longer in the long steps than in the usual ones."""
    usual = log.usable.copy()
    usual[stalls.rows] = False
    elsewhere = {
        (place.file, place.line): (place.share or 0.0) * stalls.usual_ns
        for place in measures.places(Intervals.of(log.start_ns[usual], log.end_ns[usual]))
    }
    length = float(log.length_ns[stalls.rows].mean())
    places = measures.places(Intervals.of(log.start_ns[stalls.rows], log.end_ns[stalls.rows]))
    return [
        place for place in places if (place.share or 0.0) * length > 2 * elsewhere.get((place.file, place.line), 0.0)
    ]


def _ranges(measures: Measures, kind: RangeKind) -> Intervals:
    rows = measures.trace.ranges.kind == kind
    return Intervals.of(measures.trace.ranges.start_ns[rows], measures.trace.ranges.end_ns[rows])


def _logged(period: int, long: int, steps: int = 60) -> StepLog:
    """A log of steps of 10 columns of which every so many take longer, for the examples."""
    lengths = [long if (step + 1) % period == 0 else 10 for step in range(steps)]
    return StepLog.build({"end_ns": np.cumsum(lengths) * 1_000_000})


_FIRES = (
    # A checkpoint after every tenth step.
    drawn(
        """
        host: oooooooo  oooooooo  oooooooo  oooooooo  oooooooo  oooooooo
        ckpt:                                                             wwwwwwwwwwwwwwwwwwww
        line:                                                             xxxxxxxxxxxxxxxxxxxx
        opt :         O         O         O         O         O         O
        """,
        repeat=4,
        stacks={"x": [("torch/serialization.py", 800, "save"), ("train.py", 70, "main")]},
    ),
    # Of four recorded steps, one copies its weights to the host and writes them to disk.
    drawn(
        """
        host: olsssssss olsssssss olcccccccccccccc        olsssssss
        gpu :   kkkkkkkk  kkkkkkkk  kkkkkkkkdddddd          kkkkkkkk
        step: |         |         |                       |         |
        """,
    ),
)

_SILENT = (
    # One long step is an accident.
    drawn(
        """
        opt :          O         O         O         O         O         O
        host: oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo
        """,
        step_log=_logged(40, 60),
    ),
    # One step has more to compute.
    drawn(
        """
        host: ol        ol        ol                 ol
        gpu :   kkkkkkkk  kkkkkkkk  kkkkkkkkkkkkkkkkk  kkkkkkkk
        step: |         |         |                  |         |
        """,
    ),
    # One step uses an operator for the first time, which gets ready for it.
    drawn(
        """
        host: ol        ol        oooooooooool       ol
        gpu :   kkkkkkkk  kkkkkkkk            kkkkkkk  kkkkkkkk
        step: |         |         |                  |         |
        """,
    ),
    # Steps that vary.
    drawn(
        """
        host: oooo oooooo oooo ooooo ooooooo
        opt :     O      O    O     O       O
        """,
        repeat=4,
    ),
)

RULE = Rule(
    "periodic-stall",
    check,
    fixers=("async-checkpoint", "persistent-workers"),
    fires=_FIRES,
    silent=_SILENT,
    nearness=16,
)
