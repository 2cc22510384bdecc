"""Memory grows from step to step, until the run dies of it.

What it finds
    Memory that is in use at the end of a step and was not before it, step after step: losses or outputs that are
    collected with the graphs that made them, hooks that keep activations, caches without a bound.

Why it costs
    A list of losses keeps every step's whole graph alive, with all activations. Each step takes new memory from the
    device, which is slow (`cudaMalloc`), and sooner or later there is none left.

What proves it
    The allocator's own figures over steps: readings of a live run, events of torch.profiler (`profile_memory=True`), a
    memory snapshot; on a CPU-only run the process's resident memory. The least that was in use in each step must rise,
    steadily and by about as much each time; what fills up while the run warms up does not. In a plain trace, memory
    taken from the device in step after step, and none given back. Or a few kernels that take longer in every step than
    in the step before: they copy or read a tensor to which each step adds, and the time is what they grew by since the
    first counted step (diagnose/measure/kernels/growing_work.py); the longer the run, the more.

    Lines: where a live run saw the program collect tensors that have a graph; else where the memory that stays was
    asked for, in the steps of which the allocator's history was recorded.

    The recoverable time is the idle time in calls that take memory; what a run that dies costs is not a time per step.

What fixes it
    Keep values, not graphs (`detach-kept`): `loss.detach()`, `loss.item()` every so often; bound the cache; remove the
    hook.

Thresholds
    SOON (100,000): steps within which memory must run out, at this rate, for the growth to matter; few runs are longer.
    FEW_BYTES (1 MiB): growth per step that matters where nobody knows how much memory there is.
    SEEN_BYTES (32 MiB): resident memory of a process moves by less for many reasons.
    Fewer readings than FEWEST (4) count from step WARM_UP (10) on, four steps apart or more, if the peak of memory rose
    by as much, give or take ALIKE (a fifth): what swings with the length of sequences moves the two differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.memory.leaks import backward_begins, kept_by, places_by_stack
from diagnose.measure.replay.savings import gained_ns, recoverable_ns, sped_up
from diagnose.measure.steps.outlier_steps import AFTER_WINDOW
from diagnose.measure.views.growth import growth, growth_between
from diagnose.rule import (
    CannotTell,
    Claim,
    Confidence,
    Evidence,
    Facts,
    Intervals,
    Measures,
    Place,
    Rule,
    Site,
    Symptom,
    drawn,
    format_bytes,
    format_ns,
)
from diagnose.trace.schema import Bool, Int64, StepLog

SOON = 100_000
FEW_BYTES = 1 << 20
SEEN_BYTES = 32 << 20
FEWEST = 4
WARM_UP = 10
ALIKE = 0.2

_KEEPS = "keeps graphs"
_DIED = "out of memory"
_LEFT = "left by earlier steps"
_MOST_PLACES = 3  # lines that a finding names; chosen, not measured


def check(measures: Measures) -> Iterator[Claim | CannotTell]:
    """Growth of memory, with the time that taking it costs, and of the work on what is kept."""
    working = list(_working(measures))
    yield from working
    grown = _logged(measures) or _traced(measures) or _recorded(measures)
    takes = measures.has_device and measures.device_allocation.grows
    if grown is None and not takes:
        if measures.has_device and not len(measures.memory.allocated) and not working:
            yield CannotTell("leaking-memory", _RECORD)
        return
    idle = measures.idle["allocator"]
    gain = recoverable_ns(measures, idle) if takes else 0
    if grown is None and not gain:
        return
    evidence, said = _figures(measures, grown)
    calls = len(measures.device_allocation.taken) / measures.step_count if takes else 0
    cost = f"; taking it from the device costs {format_ns(gain / measures.step_count)} per step" if gain else ""
    yield Claim(
        summary=said + cost,
        recoverable_ns=gain,
        claims=idle if gain else Intervals.empty(),
        confidence=Confidence.MEASURED if gain and grown else Confidence.BOUND if gain else Confidence.HINT,
        evidence=[*evidence, *([Evidence("calls that take memory, per step", calls, "count")] if takes else [])],
        where=_places(measures, grown),
        confirm=None if gain and grown else "more steps: memory must go on growing" + ("" if grown else f"; {_RECORD}"),
        ends_run=grown is not None and measures.memory.capacity_bytes is not None,
        ended_run=grown is not None and any(site.kind == _DIED for site in measures.trace.sites),
    )


def _working(measures: Measures) -> Iterator[Claim]:
    """Kernels that work on more in each step."""
    work = measures.growing_work if measures.has_device else None
    if work is None:
        return
    device, cut = measures.trace.device, sped_up(measures, work.rows, work.left)
    lengths = (device.end_ns - device.start_ns)[work.rows]
    gain = gained_ns(measures, cut, int((lengths * (1 - work.left)).sum()))
    if gain == 0:
        return
    launcher = int(measures.op_of_work[work.longest])
    what = measures.trace.ops.name[launcher] if launcher >= 0 else device.name[work.longest]
    yield Claim(
        summary=f"what {measures.trace.names[what]} works on grows step by step: from {format_ns(work.first_ns)} in "
        f"the first counted step to {format_ns(work.last_ns)} in the last",
        recoverable_ns=gain,
        claims=measures.time_of(work.rows),
        cut=cut,
        evidence=[
            Evidence("in the first counted step", work.first_ns, "ns"),
            Evidence("in the last", work.last_ns, "ns", (work.longest,)),
        ],
        where=places_of_ops(measures, measures.op_of_work[work.rows]),
        fixers=(),
        confirm="more steps: it must go on growing, and not be meant to (a window that fills, a cache of keys and "
        "values)",
    )


_RECORD = "how much memory is in use: a live run (diagnose run), or profile_memory=True"


@dataclass(frozen=True)
class _Growth:
    """What grows, and where to look for who keeps it."""

    bytes_per_step: float
    steps: int
    """The number of steps over which it was seen."""
    since_ns: int | None = None
    before_ns: int | None = None
    """The history in which allocations are to be looked for."""


def _logged(measures: Measures) -> _Growth | None:
    """Return the growth from the readings of a live run at the ends of steps."""
    log, series = measures.trace.step_log.end_ns, measures.memory.allocated
    if len(log) < 2 or len(series) < 2 or measures.memory_in_steps:
        return None
    step = np.searchsorted(log, series.time_ns, side="right")
    # One reading a step at most, the last; those before the first step's end and after the last one's are of no step.
    last = np.append(step[1:] != step[:-1], True) & (step > 0) & (series.time_ns <= log[-1])
    last &= _outside_of_window(measures, step)
    step, value, time = step[last], series.value[last], series.time_ns[last]
    if len(step) < 2:
        return None
    per_step = _of_few(measures, step, value, time) if len(step) < FEWEST else growth_between(step, value)
    found = _Growth(per_step, int(step[-1] - step[0])) if per_step else None
    return found if found and _matters(measures, found) else None


def _outside_of_window(measures: Measures, step: Int64) -> Bool:
    """Which readings tell of the program alone: a profiler's window, and the trace that is written after it, fill the
    memory of its process, too. Those after them, where there are enough, else those before."""
    window_ns = measures.trace.window_ns
    if measures.memory.device >= 0 or window_ns is None:
        return np.ones(len(step), np.bool_)
    begins, ends = np.searchsorted(measures.trace.step_log.end_ns, window_ns)
    sides = step > ends + AFTER_WINDOW, step <= begins
    return next((side for side in sides if side.sum() >= FEWEST), np.ones(len(step), np.bool_))


def _of_few(measures: Measures, step: Int64, value: Int64, time_ns: Int64) -> float | None:
    """The growth per step of two or three readings: what stays after a step must raise the peak in steps as well."""
    peaks = measures.memory.peaks
    if step[0] < WARM_UP or step[-1] - step[0] < FEWEST or np.diff(value).min() <= 0 or not len(peaks):
        return None
    before, after = peaks.at(time_ns[[0, -1]])
    risen = float(value[-1] - value[0])
    return risen / float(step[-1] - step[0]) if abs(after - before - risen) <= ALIKE * risen else None


def _traced(measures: Measures) -> _Growth | None:
    """Return the growth from the allocator's events within recorded steps."""
    steps, series = measures.steps, measures.memory.allocated
    if not measures.memory_in_steps or not len(series) or measures.step_count < 2:
        return None
    starts, ends = steps.host_start_ns, steps.host_end_ns
    least = series.least_within(starts, ends)
    rise = growth(least)
    if rise is None and len(least) == FEWEST - 1:
        # Every allocation is recorded: two rises that are the same are no accident.
        first, second = np.diff(least).tolist()
        rise = float(first) if first > 0 and abs(second - first) <= ALIKE * first else None
    found = _Growth(rise, len(steps), int(starts[0]), int(ends[-2])) if rise is not None else None
    return found if found and _matters(measures, found) else None


def _recorded(measures: Measures) -> _Growth | None:
    """Return the growth from a history without steps: between its backward passes."""
    memory = measures.memory
    if measures.step_count or len(measures.trace.step_log) or not len(memory.allocated):
        return None
    begins = backward_begins(measures.trace, memory.device)
    if len(begins) < 2:
        return None
    rise = growth(memory.allocated.least_within(begins[:-1], begins[1:]))
    found = _Growth(rise, len(begins) - 1, int(begins[0]), int(begins[-2])) if rise is not None else None
    return found if found and _matters(measures, found) else None


def _matters(measures: Measures, found: _Growth) -> bool:
    memory = measures.memory
    if memory.device < 0:
        return found.bytes_per_step * found.steps >= SEEN_BYTES
    if memory.capacity_bytes is None:
        return found.bytes_per_step >= FEW_BYTES
    return found.bytes_per_step * SOON >= memory.capacity_bytes


def _figures(measures: Measures, grown: _Growth | None) -> tuple[list[Evidence], str]:
    """Return what is known of the growth, as evidence and as a sentence."""
    if grown is None:
        return [], "memory is taken from the device in step after step, and none is given back"
    memory = measures.memory
    what = "the process's memory" if memory.device < 0 else "allocated memory"
    evidence = [
        Evidence("growth per step", round(grown.bytes_per_step), "bytes"),
        Evidence("steps", grown.steps, "count"),
    ]
    said = f"{what} grows by {format_bytes(grown.bytes_per_step)} per step"
    if memory.capacity_bytes is not None and len(memory.allocated):
        left = max(memory.capacity_bytes - (memory.peak_allocated_bytes or 0), 0)
        evidence.append(Evidence("steps until the device is full", int(left / grown.bytes_per_step), "count"))
        said += f": at this rate the device is full after {left / grown.bytes_per_step:,.0f} more steps"
    return evidence, said


def _places(measures: Measures, grown: _Growth | None) -> tuple[Place, ...]:
    """Return where tensors with graphs are collected; else where what stays was asked for."""
    trace = measures.trace
    kept = [site for site in trace.sites if site.kind == _KEEPS]
    if kept:
        return tuple(Place.at(site) for site in kept)
    if grown is None:
        return ()
    if grown.since_ns is None or grown.before_ns is None:
        return _left(measures)
    rows = kept_by(trace, measures.memory.device, grown.since_ns, grown.before_ns)
    if not len(rows):
        return ()
    times = trace.memory.time_ns[rows]  # of torch.profiler: its events know no stack, its Python calls do
    return places_by_stack(trace, rows) or measures.places(Intervals.of(times, times + 1))


def _left(measures: Measures) -> tuple[Place, ...]:
    """The lines of what earlier steps have left in the steps of which the allocator's history was recorded."""
    peak = measures.memory_peak
    sizes: dict[Place, int] = {}
    for part in peak.parts if peak is not None else ():
        if part.category == _LEFT and part.place is not None:
            sizes[part.place] = sizes.get(part.place, 0) + part.held_bytes
    whole = sum(sizes.values())
    ranked = sorted(sizes, key=lambda place: -sizes[place])[:_MOST_PLACES]
    return tuple(Place(one.file, one.line, function=one.function, share=sizes[one] / whole) for one in ranked)


_H200 = Facts(device_name="NVIDIA H200", device_memory_bytes=150_000_000_000)
_STEP = """
    host: mmol
    gpu :     kkkkkkkk
    step:             |
    """
_RUN = """
    host: ol
    gpu :   kkkkkkkkkk
    step:             |
    """
_LOG = StepLog.build({"end_ns": range(12_000_000, 492_000_000, 12_000_000)})
_CAT = {"K": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>"}

_FIRES = (
    # Each step adds its results to a tensor, and copies all of it to do so.
    drawn(
        """
        host: olol sssssssssolol ssssssssssolol sssssssssssolol ssssssssssssolol sssssssssssss
        gpu :     kkkkkkkKKK    kkkkkkkKKKK    kkkkkkkKKKKK    kkkkkkkKKKKKK    kkkkkkkKKKKKKK
        step: |             |              |               |                |                 |
        """,
        kernels=_CAT,
    ),
    # Each step takes memory from the device, and none is ever given back.
    drawn(_STEP, repeat=4, facts=_H200),
    # The same, where the allocator's figures tell how much.
    drawn(
        _STEP,
        repeat=40,
        facts=_H200,
        step_log=_LOG,
        counted={"allocator.allocated_bytes": [10**9 + at * 268_000_000 for at in range(41)]},
        sites=(Site(_KEEPS, "train.py", 61, "main", {"name": "history"}),),
    ),
    # Two readings at ends of steps alone, between which the peak rises by as much.
    drawn(
        _RUN,
        repeat=40,
        facts=_H200,
        step_log=_LOG,
        counted={
            "allocator.allocated_bytes": [0, 4 * 10**9, 8 * 10**9, 5 * 10**9],
            "allocator.peak_allocated_bytes": [0, 9 * 10**9, 13 * 10**9, 13 * 10**9],
        },
    ),
    # On a CPU alone: resident memory.
    drawn(
        """
        host: oooooooooooo
        step:             |
        """,
        repeat=40,
        step_log=_LOG,
        counted={"host.process_rss_bytes": [10**9 + at * 8_000_000 for at in range(41)]},
    ),
)
_SILENT = (
    # Sequences grow longer from batch to batch: all kernels do.
    drawn(
        """
        host: olol ssssssolol ssssssssolol ssssssssssolol ssssssssssssolol ssssssssssssss
        gpu :     kkkKKKK    kkkkKKKKK    kkkkkKKKKKK    kkkkkkKKKKKKK    kkkkkkkKKKKKKKK
        step: |          |            |              |                |                  |
        """,
        kernels=_CAT,
    ),
    # The first steps fill the allocator; then memory is there.
    drawn(
        """
        host: mmol        mmol        ol        ol
        gpu :     kkkkkkkk    kkkkkkkk  kkkkkkkk  kkkkkkkk
        step: |           |           |         |         |
        """,
        facts=_H200,
    ),
    # What is allocated swings with the length of sequences, and does not grow.
    drawn(
        """
        host: ol
        gpu :   kkkkkkkkkk
        step:             |
        """,
        repeat=40,
        facts=_H200,
        step_log=_LOG,
        counted={"allocator.allocated_bytes": [(20 + at * 7 % 11) * 10**9 for at in range(41)]},
    ),
    # Two readings after steps of different lengths: the peak rose by far more than what stays.
    drawn(
        _RUN,
        repeat=40,
        facts=_H200,
        step_log=_LOG,
        counted={
            "allocator.allocated_bytes": [0, 4 * 10**9, 5 * 10**9, 5 * 10**9],
            "allocator.peak_allocated_bytes": [0, 9 * 10**9, 20 * 10**9, 20 * 10**9],
        },
    ),
    # A cache that fills and is full.
    drawn(
        """
        host: ol
        gpu :   kkkkkkkkkk
        step:             |
        """,
        repeat=40,
        facts=_H200,
        step_log=_LOG,
        counted={"allocator.allocated_bytes": [min(at, 20) * 10**9 for at in range(41)]},
    ),
)

RULE = Rule(
    "leaking-memory", check, fixers=("detach-kept",), fires=_FIRES, silent=_SILENT, nearness=11, symptom=Symptom.MEMORY
)
