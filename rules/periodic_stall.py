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
    are shorter then: what they save is taken off. A host that runs ahead for many steps and then reads a loss waits as
    long as it was ahead: steps shorter than the device's work are taken off, however many they are. Recorded ranges
    (checkpoints, loader waits, collections, compiling) and stack samples inside the long steps say what happens in
    them. Steps while the profiler was at work are left out.

    Where steps vary too much for that, as on a shared machine, steps at regular distances in which a checkpoint was
    seen to be written count by the time that it took.

    Waits for the loader every few steps are bursts of its workers, which is `input-bound`; compiling is `recompiling`.

    A short recording may hold a single long step. It is an ailment where what makes it long is what a steady step has
    not: Python, waits, files and copies to the host, while the device does nothing else. How often such a step comes is
    not known then, and the figure is a bound. Unless it copies to the host or is at files for most of that time, or two
    such steps lie apart, the recording does not even tell whether it is the program's, and the finding is a note: the
    profiler may do it. Of seven recordings of balanced jobs on two H200 (torch 2.11, without stacks), five stand still
    once, for 130 to 210 ms, amid operators of the framework, in both ranks at about the same time and within the first
    0.3 s.

What fixes it
    Writing checkpoints in the background (`async-checkpoint`); workers that live on between epochs
    (`persistent-workers`).

Thresholds
    A long step exceeds the median by half of it and by six standard deviations, estimated from the median absolute
    deviation: of normally spread steps, not one in 10⁸ does. Three of them at least, of whose distances three in four
    are multiples of the period; the rest is in diagnose/measure/steps/outlier_steps.py.
    BURST (16): a period up to this, in which the loader is waited for, is that of its workers taking turns, unless it
    begins a pass in most of these steps.
    MOST (half): what explains this part of the excess is named as its cause.
    MOST_CAME (three in four): of the steps that a period lets expect, so many are long where it is told as one.
    SMALLEST_BYTES (1 MiB): copies to the host that are more than a few numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.measure.steps.outlier_steps import (
    Stalls,
    StepTimes,
    begins_pass,
    exceptional_steps,
    is_spent_in,
    median_low,
    stalls_of,
    stalls_within,
    step_times,
    training_in,
)
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Intervals,
    Measures,
    Place,
    Rule,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
)
from diagnose.trace.schema import CopyDirection, Int64, RangeKind, StepLog

BURST = 16
MOST = 0.5
MOST_CAME = 0.75
SMALLEST_BYTES = 1 << 20

_HOST_CAUSES = ("python", "io", "sync", "unknown")
_CAUSES = (
    (RangeKind.CHECKPOINT, "a checkpoint is written", ("async-checkpoint",)),
    (RangeKind.INPUT, "the loader is waited for, as when an epoch starts", ("persistent-workers", "loader-workers")),
    (RangeKind.COMPILE, "", ()),
    (RangeKind.GC, "Python collects garbage", ("gc-schedule",)),
)


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Long steps at regular distances, and what happens in them; in a short recording, a single one."""
    log = step_times(measures.trace, measures.steps)
    stalls = _stalls(measures, log) if log is not None else None
    if stalls is None and (log is None or not log.live) and (alone := _alone(measures)) is not None:
        yield alone
        return
    if log is None:
        yield CannotTell("periodic-stall", _missing(len(measures.trace.step_log)))
        return
    if stalls is None:
        return
    long = Intervals.of_rows(log, stalls.rows)
    kind, cause, fixers = _cause(measures, log, stalls)
    bursts = stalls.period <= BURST and begins_pass(measures.trace, log)[stalls.rows].mean() < MOST
    if kind is RangeKind.COMPILE or (kind is RangeKind.INPUT and bursts):
        return
    per_step = int(stalls.cost_ns.sum()) // int(log.usable.sum())
    inside = Intervals.empty() if kind is None else training_in(measures.trace, kind) & long
    claims, gain = _within_counted(
        measures, exceptional_steps(measures.steps.length_ns), int(np.median(stalls.cost_ns))
    )
    seen_ns = min(gain, per_step * measures.step_count)
    length = float(np.median(log.length_ns[stalls.rows]))
    yield Claim(
        summary=f"{_how_many(stalls, int(log.usable.sum()))} {format_ns(length)} instead of "
        f"{format_ns(stalls.usual_ns)}, {format_ns(per_step)} per step on average{f': {cause}' if cause else ''}",
        recoverable_ns=seen_ns,
        claims=claims,
        unseen_ns=per_step - seen_ns // max(measures.step_count, 1),
        evidence=[
            Evidence("long steps", len(stalls.rows), "count"),
            Evidence("steps looked at", int(log.usable.sum()), "count"),
            Evidence("median step", stalls.usual_ns, "ns"),
            Evidence("median excess", int(np.median(stalls.cost_ns)), "ns"),
        ],
        where=measures.places(inside) or _standing_out(measures, log, stalls),
        fixers=fixers,
        knows_how_often=True,
    )


def _missing(logged: int) -> str:
    if logged:
        return f"the lengths of more steps: this run logged {logged}, before which and while tracing few are steady"
    return "the lengths of many steps: a live run (diagnose run) logs every step"


def _how_many(stalls: Stalls, steps: int) -> str:
    """`one step in 20 takes`, where about as many are long; else how many are, which the distances alone do not say."""
    count = len(stalls.rows)
    if count * stalls.period >= MOST_CAME * steps:
        return f"one step in {stalls.period} takes"
    return f"{count} of {steps} steps take"


def _alone(measures: Measures) -> Claim | None:
    """The long steps of a recording too short for a period, if what makes them long is no work of a steady step."""
    rows = exceptional_steps(measures.steps.length_ns)
    if not len(rows) or not measures.has_device:
        return None
    length = measures.steps.length_ns
    usual = median_low(length)
    apart = _apart(measures)
    spent = measures.per_step(apart)
    more = spent[rows] - median_low(np.delete(spent, rows))
    if more.sum() < MOST * (length[rows] - usual).sum():
        return None
    claims, gain = _within_counted(measures, rows, int(length[rows].max()))
    copied = _copied(measures, rows)
    at_files = (measures.idle_of("io") & claims).total_ns >= MOST * claims.total_ns
    count, steps = len(rows), measures.step_count
    return Claim(
        summary=f"{count} of the {steps} recorded steps {'takes' if count == 1 else 'take'} "
        f"{_lengths(length[rows])} instead of {format_ns(usual)}, in which the device "
        f"waits{f' and {format_bytes(copied)} are copied to the host' if copied else ''}",
        recoverable_ns=gain,
        claims=claims,
        confidence=Confidence.BOUND,
        sure=1.0 if copied or at_files or (np.diff(rows) > 1).any() else 0.0,
        evidence=[
            Evidence("long steps", count, "count"),
            Evidence("steps looked at", steps, "count"),
            Evidence("median step", usual, "ns"),
            Evidence("median excess", int(np.median(length[rows])) - usual, "ns"),
        ],
        where=measures.places(claims),
        fixers=("async-checkpoint",) if copied else (),
        knows_how_often=copied > 0 or at_files,
        confirm="how often such a step comes: a live run (diagnose run) logs every step",
    )


def _lengths(long: Int64) -> str:
    """The length of long steps; the shortest and the longest, where one figure does not add up to their time."""
    shortest, longest = int(long.min()), int(long.max())
    if longest < 2 * shortest:
        return format_ns(float(np.median(long)))
    return f"{format_ns(shortest)} to {format_ns(longest)}"


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
    excess = np.minimum(length[rows] - median_low(length), most_ns)
    apart = _apart(measures) & Intervals.of(starts, ends)
    inside = apart.covered(starts, ends)
    if measures.has_device and inside.sum() >= MOST * excess.sum():
        return apart, int(np.minimum(inside, excess).sum())
    claims = Intervals.of(ends - excess, ends)
    return claims, claims.total_ns


def _stalls(measures: Measures, log: StepTimes) -> Stalls | None:
    device_ns = 0
    if measures.has_device and measures.step_count:
        # Work, and what of it has to wait for other work: no host makes that shorter.
        waiting = measures.per_step(measures.idle_of("dependency"))
        device_ns = int(np.median(measures.busy_ns + waiting))
    saves = training_in(measures.trace, RangeKind.CHECKPOINT)
    return stalls_of(log, device_ns) or stalls_within(log, saves.covered(log.start_ns, log.end_ns))


def _cause(measures: Measures, log: StepTimes, stalls: Stalls) -> tuple[RangeKind | None, str, tuple[str, ...]]:
    """Return what takes up most of the excess, beyond what it takes of the usual steps."""
    for kind, words, fixers in _CAUSES:
        if is_spent_in(measures.trace, kind, log, stalls.rows, stalls.usual_ns):
            return kind, words, fixers
    return None, "", ()


def _standing_out(measures: Measures, log: StepTimes, stalls: Stalls) -> list[Place]:
    """Lines that take longer in the long steps than in the usual ones."""
    usual = log.usable.copy()
    usual[stalls.rows] = False
    elsewhere = {
        (place.file, place.line): (place.share or 0.0) * stalls.usual_ns
        for place in measures.places(Intervals.of_rows(log, usual))
    }
    length = float(log.length_ns[stalls.rows].mean())
    places = measures.places(Intervals.of_rows(log, stalls.rows))
    return [
        place for place in places if (place.share or 0.0) * length > 2 * elsewhere.get((place.file, place.line), 0.0)
    ]


_LOG = StepLog.build({"end_ns": np.cumsum([60 if step == 40 else 10 for step in range(1, 61)]) * 1_000_000})
"""Steps of 10 columns, one of which takes 60."""


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
    drawn("""
        host: olsssssss olsssssss olcccccccccccccc        olsssssss
        gpu :   kkkkkkkk  kkkkkkkk  kkkkkkkkdddddd          kkkkkkkk
        step: |         |         |                       |         |
    """),
)

_SILENT = (
    # One long step is an accident.
    drawn(
        """
        opt :          O         O         O         O         O         O
        host: oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo
        """,
        step_log=_LOG,
    ),
    # One step has more to compute.
    drawn("""
        host: ol        ol        ol                 ol
        gpu :   kkkkkkkk  kkkkkkkk  kkkkkkkkkkkkkkkkk  kkkkkkkk
        step: |         |         |                  |         |
    """),
    # One step uses an operator for the first time, which gets ready for it.
    drawn("""
        host: ol        ol        oooooooooool       ol
        gpu :   kkkkkkkk  kkkkkkkk            kkkkkkk  kkkkkkkk
        step: |         |         |                  |         |
    """),
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
    symptom=Symptom.HOST,
)
