"""The device waits while Python collects garbage.

What it finds
    Idle time of the device (on a CPU-only run, time of the training thread) inside garbage collections: those that
    Python starts by itself, and `gc.collect()` in the loop.

Why it costs
    A collection holds the interpreter: nothing is launched meanwhile. The oldest generation is walked whole, and a
    training program holds millions of objects: modules, datasets, caches.

What proves it
    Collections as the interpreter reports them on a live run, or calls of `gc.collect` that the profiler recorded, as
    far as the device idles in them. A collection under a full queue of work costs nothing and is not counted.

    The oldest generation is collected once in many steps, and few are recorded. A live run sees the collections of all
    its steps: where they take less of those than of the recorded ones, only that counts.

    A recording without either cannot tell; where idle time outside the framework is no more than a note, a pause cannot
    have cost more either, and nothing is said.

What fixes it
    `gc.freeze()` after the model is built, or collecting by hand every few hundred steps, when all ranks do
    (`gc-schedule`); no `gc.collect()` in the loop.

Thresholds
    UNSEEN (2 %): idle time in which a pause could hide, below which it is not worth asking (severity low begins there).
    diagnose.measure.steps.idle.REFILL_NS (100 µs): the line is the one that is seen as soon as the interpreter is free
    again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from diagnose.measure.replay.savings import recoverable_ns
from diagnose.measure.steps.idle import REFILL_NS
from diagnose.measure.steps.outlier_steps import StepTimes, step_times
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    EventTable,
    Evidence,
    Intervals,
    Measures,
    Rule,
    Symptom,
    drawn,
    format_count,
    format_ns,
)
from diagnose.trace.schema import Int64, RangeKind

UNSEEN = 0.02

_COLLECT = re.compile(r"^<built-in function collect>$")  # as torch.profiler writes gc.collect
_OLDEST = "generation 2"


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Idle time in collections."""
    if measures.step_count == 0:
        return
    collections = _collections(measures)
    idle = measures.idle_of("gc") | (collections & measures.idle_of("python", "dispatch", "unknown"))
    log = _seen_by_a_live_run(measures)
    usual = 1.0 if log is None else _usual_part(measures, collections, log)
    gain = round(recoverable_ns(measures, idle) * usual)
    if gain == 0:
        hidden = measures.share(measures.idle_of("python", "unknown"))
        if hidden >= UNSEEN and not _was_watched(measures):
            yield CannotTell("gc-pause", "garbage collections: a live run (diagnose run), or a recording with stacks")
        return
    inside = collections & measures.counted
    rows = tuple(_rows(measures).tolist())
    oldest = _count(measures, oldest=True)
    which = f", {format_count(oldest / measures.step_count)} of the oldest generation" if oldest else ""
    traced = "traced " if usual < 1 else ""
    who = "the device idles" if measures.has_device else "the training thread stands still"
    yield Claim(
        summary=f"{who} {format_ns(gain / measures.step_count)} per step while Python collects garbage "
        f"({format_count(_count(measures) / measures.step_count)} collections per {traced}step{which})",
        recoverable_ns=gain,
        claims=idle,
        confidence=Confidence.BOUND if measures.blind else Confidence.MEASURED,
        evidence=[
            Evidence("idle.gc", idle.total_ns // measures.step_count, "ns"),
            Evidence("collections per step", _count(measures) / measures.step_count, "count", rows, EventTable.RANGES),
            Evidence("time in collections", inside.total_ns // measures.step_count, "ns"),
            Evidence("longest collection", int(collections.lengths_ns.max(initial=0)), "ns"),
            *([Evidence("of it, in a step of the whole run", usual, "share")] * (usual < 1)),
        ],
        # The collector holds the interpreter: a sampler sees the line only once it is done.
        where=measures.places(Intervals.of(collections.starts, collections.ends + REFILL_NS)),
        confirm="a recording of the device's work: it may have been busy meanwhile" if measures.blind else None,
        knows_how_often=log is not None,
    )


def _seen_by_a_live_run(measures: Measures) -> StepTimes | None:
    """The steps that a live run logged, in which it saw every collection; None without one."""
    log = step_times(measures.trace, measures.steps)
    return log if log is not None and log.live else None


def _usual_part(measures: Measures, collections: Intervals, log: StepTimes) -> float:
    """The part (0 to 1) of the time in collections, per counted step, that a step of the whole run has of it."""
    counted_ns = int(measures.per_step(collections).sum())
    logged_ns = int(collections.covered(log.start_ns, log.end_ns)[log.usable].sum())
    steps = int(log.usable.sum()) + measures.step_count
    return min((counted_ns + logged_ns) / steps * measures.step_count / counted_ns, 1.0) if counted_ns else 1.0


def _collections(measures: Measures) -> Intervals:
    """Collections on whatever thread: each of them holds the interpreter."""
    trace = measures.trace
    kind = trace.ranges.kind == RangeKind.GC
    named = np.array([*(_COLLECT.match(name) is not None for name in trace.names), False], np.bool_)
    calls = named[trace.frames.name]
    return Intervals.of(
        np.concatenate((trace.ranges.start_ns[kind], trace.frames.start_ns[calls])),
        np.concatenate((trace.ranges.end_ns[kind], trace.frames.end_ns[calls])),
    )


def _count(measures: Measures, *, oldest: bool = False) -> int:
    """Collections that begin within the counted steps."""
    trace = measures.trace
    if not oldest:
        return int(measures.counted.contains(_collections(measures).starts).sum())
    return sum(trace.names[name] == _OLDEST for name in trace.ranges.name[_rows(measures)].tolist())


def _rows(measures: Measures) -> Int64:
    """Rows of `trace.ranges`: collections that begin within the counted steps."""
    ranges = measures.trace.ranges
    return np.flatnonzero((ranges.kind == RangeKind.GC) & measures.counted.contains(ranges.start_ns))


def _was_watched(measures: Measures) -> bool:
    """Whether collections would have been recorded."""
    trace = measures.trace
    return len(trace.step_log) > 0 or len(trace.frames) > 0


_FIRES = (
    # The collector runs between steps; the queue is empty by then.
    drawn(
        """
        host: ol            ol
        gc  :     ggggggg
        gpu :   kkkk          kkkkkkk
        line:            x
        step:                        |
        """,
        repeat=4,
        stacks={"x": [("train.py", 31, "main")]},
    ),
    # On a CPU alone.
    drawn(
        """
        host: oooooo      oooo
        gc  :       ggggg
        opt :                O
        """,
        repeat=4,
    ),
)

_SILENT = (
    # A collection under a full queue.
    drawn(
        """
        host: olol
        gc  :      gggggg
        gpu :   kkkkkkkkkkKKKKKK
        step:                   |
        """,
        kernels={"K": "other_kernel"},
    ),
    # Idle as long, but in the user's own Python.
    drawn(
        """
        host: ol            ol
        gpu :   kkkk          kkkkkkk
        line:     ppppppp
        step:                        |
        """,
        repeat=4,
        stacks={"p": [("train.py", 52, "moving_average")]},
    ),
)

RULE = Rule("gc-pause", check, fixers=("gc-schedule",), fires=_FIRES, silent=_SILENT, nearness=12, symptom=Symptom.HOST)
