"""The contents of a device's memory at its peak: by category, by line, and over time.

    peak = memory_peak(trace, device, logits_bytes)
    peak.categories             # bytes by name; they sum to peak.held_bytes, exactly
    peak.parts[0].place         # the line that asked for most of it

The moment is the one before an allocation found no room, where there was one; else the one at which most was held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.measure.lines.line_attribution import is_library
from diagnose.measure.memory.allocating_ops import AllocatingOps
from diagnose.measure.memory.allocations import MOST_BYTES, Pieces, pieces, summed
from diagnose.measure.memory.categories import ACTIVATIONS, CATEGORIES, INPUTS, LEFT, LOGITS, recorded_roles, roles
from diagnose.measure.memory.history import of_device
from diagnose.measure.memory.phases import Phases, TrainingPhase, training_phases
from diagnose.measure.memory.segment_layout import layout_at
from diagnose.model import MemoryPart, MemoryPeak, MemoryTimeline, Place
from diagnose.trace import StackFrame, Trace
from diagnose.trace.schema import MISSING, Bool, Int64, MemoryAction, MemoryCategory, UInt8

MOST_PARTS = 40
BUCKETS = 120
"""Stretches of the timeline: as many columns as a wide terminal has."""
_ALIKE = 0.999
"""A share of the most that was held: what comes this near later in the history is the moment that is shown, because of
what was there before the history began least is known."""
_PASSING = (ACTIVATIONS, LOGITS, INPUTS)
"""What a step makes and is done with at its end."""


@dataclass(frozen=True, eq=False)
class _Spans:
    """What serves as what, from which place of the history to which: a piece that outlives its step has two."""

    piece: Int64
    role: UInt8
    begin: Int64
    end: Int64
    size_bytes: Int64


def memory_peak(trace: Trace, device: int, logits_bytes: Int64, ops: AllocatingOps | None = None) -> MemoryPeak | None:
    """The peak of a device's memory; None where nothing tells what was held. `ops` tells who asked, beside stacks."""
    held = pieces(trace, device)
    if not len(held):
        return _recorded_peak(trace, device)
    phases = training_phases(trace, held.rows)
    role = roles(trace, held, phases, logits_bytes)
    spans = _spans(held, role, phases)
    place, lack = _moment(trace, held)
    there = (spans.begin <= place) & (spans.end > place)
    categories = _named(np.bincount(spans.role[there], spans.size_bytes[there], len(CATEGORIES)))
    layout, held_bytes = layout_at(trace, device, held, place), int(spans.size_bytes[there].sum())
    if layout is not None and layout.reserved_bytes < held_bytes:
        layout = None  # segments and history contradict each other
    return MemoryPeak(
        device=device,
        at_ns=_time(trace, held, place),
        held_bytes=held_bytes,
        categories=categories,
        parts=_parts(trace, held, phases, spans, there, ops),
        reserved_bytes=layout.reserved_bytes if layout else None,
        fragments_bytes=layout.fragments_bytes if layout else None,
        capacity_bytes=trace.facts.device_memory_bytes,
        wanted_bytes=lack,
        timeline=_timeline(trace, held, spans),
    )


def _moment(trace: Trace, held: Pieces) -> tuple[int, int | None]:
    """The place of the moment, and what the allocation wanted that found no room in it."""
    action = trace.memory.action[held.rows]
    lacks = np.flatnonzero(action == MemoryAction.OUT_OF_MEMORY)
    if len(lacks):
        size = int(trace.memory.size_bytes[held.rows[lacks[-1]]])
        return int(lacks[-1]), size if size > 0 else None
    total = held.total()
    near = np.flatnonzero(total >= min(_ALIKE * total.max(), total.max()))
    first = near[np.flatnonzero(np.diff(near, prepend=near[0] - 2) > 1)[-1]]
    return int(first + np.argmax(total[first : near[-1] + 1])) - 1, None


def _spans(held: Pieces, role: UInt8, phases: Phases) -> _Spans:
    """What passes with its step serves as it until that ends, and then is what the step has left."""
    every = np.arange(len(held))
    ends = np.append(np.flatnonzero(phases.step[1:] != phases.step[:-1]) + 1, held.events)
    step_end = ends[np.searchsorted(ends, held.taken, side="right").clip(max=len(ends) - 1)]
    left = np.isin(role, _PASSING) & (held.taken >= 0) & (held.freed > step_end) & (step_end < held.events)
    return _Spans(
        piece=np.concatenate((every, every[left])),
        role=np.concatenate((role, np.full(int(left.sum()), LEFT))).astype(np.uint8),
        begin=np.concatenate((held.taken, step_end[left])),
        end=np.concatenate((np.where(left, step_end, held.freed), held.freed[left])),
        size_bytes=np.concatenate((held.size_bytes, held.size_bytes[left])),
    )


def _parts(
    trace: Trace, held: Pieces, phases: Phases, spans: _Spans, there: Bool, ops: AllocatingOps | None
) -> tuple[MemoryPart, ...]:
    """Return what is held at the peak by category, who asked, and phase, the most first."""
    piece, role = spans.piece[there], spans.role[there]
    rows = ops.at(_asked_ns(trace, held, piece)) if ops is not None else np.full(len(piece), MISSING)
    askers, asker = _askers(trace, held.stack[piece], ops.names(rows) if ops is not None else [None] * len(piece))
    taken, freed = _phase_at(phases, held.taken[piece]), _phase_at(phases, held.freed[piece])
    keys, number, counts = np.unique(
        np.stack((role.astype(np.int64), asker, taken, freed)), axis=1, return_inverse=True, return_counts=True
    )
    sizes = np.bincount(number.ravel(), spans.size_bytes[there], keys.shape[1])
    found = []
    for at in np.argsort(-sizes, kind="stable")[:MOST_PARTS].tolist():
        kind, who, born, gone = keys[:, at].tolist()
        place, by = askers[who]
        if place is None and by is not None and ops is not None:
            place = ops.place(rows[number.ravel() == at])
        found.append(
            MemoryPart(
                category=CATEGORIES[kind],
                held_bytes=int(sizes[at]),
                pieces=int(counts[at]),
                place=place,
                taken="before" if born == MISSING else _PHASES[born],
                freed="never" if gone == MISSING else _PHASES[gone],
                by=by,
            )
        )
    return tuple(found)


def _asked_ns(trace: Trace, held: Pieces, piece: Int64) -> Int64:
    """Return when pieces were taken; before everything where that was not seen."""
    seen = held.taken[piece] >= 0
    times = np.full(len(piece), np.iinfo(np.int64).min // 2)
    times[seen] = trace.memory.time_ns[held.rows[held.taken[piece[seen]]]]
    return times


def _askers(
    trace: Trace, stack: Int64, names: Sequence[str | None]
) -> tuple[list[tuple[Place | None, str | None]], Int64]:
    """Return who asked, each once, and per piece which of them: a line where the stack has one, else what `names`
    has."""
    lines = {number: _line(trace.stacks[number]) for number in np.unique(stack[stack != MISSING]).tolist()}
    found: dict[tuple[Place | None, str | None], int] = {}
    asker = [
        found.setdefault((line, name if line is None else None), len(found))
        for line, name in zip((lines.get(number) for number in stack.tolist()), names, strict=True)
    ]
    return list(found), np.asarray(asker, np.int64)


_PHASES: dict[int, str | None] = {
    TrainingPhase.UNKNOWN: None,
    TrainingPhase.FORWARD: "forward",
    TrainingPhase.BACKWARD: "backward",
    TrainingPhase.OPTIMIZER: "optimizer",
}


def _phase_at(phases: Phases, place: Int64) -> Int64:
    """The phase of a place; -1 before and after the history."""
    padded = np.append(phases.phase.astype(np.int64), MISSING)
    return padded[np.where(place < len(phases.phase), place, -1)]


def _line(stack: tuple[StackFrame, ...]) -> Place | None:
    """The innermost line of the program's own."""
    own = (frame for frame in stack if frame.owned and not is_library(frame.file))
    return next((Place.at(frame) for frame in own), None)


def _time(trace: Trace, held: Pieces, place: int) -> int | None:
    if not 0 <= place < held.events:
        return None
    time_ns = int(trace.memory.time_ns[held.rows[place]])
    return time_ns if time_ns != MISSING else None


def _timeline(trace: Trace, held: Pieces, spans: _Spans) -> MemoryTimeline | None:
    if held.events < 2:
        return None
    rows = [spans.role == kind for kind in range(len(CATEGORIES))]
    by_role = np.stack([summed(spans.begin[row], spans.end[row], spans.size_bytes[row], held.events) for row in rows])
    return timeline_of(trace.memory.time_ns[held.rows], by_role[:, 1:])


def timeline_of(time_ns: Int64, by_role: Int64) -> MemoryTimeline:
    """Bytes by category over time: of each of `BUCKETS` stretches the moment at which most was held.

    `by_role` has a row for each of `CATEGORIES` and a column for each event. Without times, events are as far apart as
    each other.
    """
    timed = bool((time_ns != MISSING).all())
    clock = time_ns if timed else np.arange(len(time_ns), dtype=np.int64)
    total = by_role.sum(axis=0)
    span = max(int(clock[-1]) - int(clock[0]), 1)
    bucket = ((clock - clock[0]).clip(0) / span * BUCKETS).astype(np.int64).clip(0, BUCKETS - 1)
    order = np.lexsort((total, bucket))
    last = order[np.append(bucket[order][1:] != bucket[order][:-1], True)]
    used = np.flatnonzero(by_role[:, last].any(axis=1))
    return MemoryTimeline(
        time_ns=tuple(clock[last].tolist()) if timed else None,
        categories={CATEGORIES[kind]: tuple(by_role[kind, last].tolist()) for kind in used.tolist()},
    )


def _named(sizes: npt.NDArray[Any]) -> Mapping[str, int]:
    return {CATEGORIES[kind]: int(sizes[kind]) for kind in np.flatnonzero(sizes).tolist()}


def _recorded_peak(trace: Trace, device: int) -> MemoryPeak | None:
    """Return the peak from categories over time, as torch.profiler's memory timelines have them."""
    series = _event_series(trace, device) or _counter_series(trace)
    if series is None:
        return None
    time_ns, by_role = series
    at = int(by_role.sum(axis=0).argmax())
    return MemoryPeak(
        device=device,
        at_ns=int(time_ns[at]) if time_ns[at] != MISSING else None,
        held_bytes=int(by_role[:, at].sum()),
        categories=_named(by_role[:, at]),
        capacity_bytes=trace.facts.device_memory_bytes,
        timeline=timeline_of(time_ns, by_role),
    )


def _event_series(trace: Trace, device: int) -> tuple[Int64, Int64] | None:
    memory = trace.memory.where(of_device(trace, trace.memory.device, device))
    role = recorded_roles(memory.category)
    if not (memory.category != MemoryCategory.UNKNOWN).any():
        return None
    back = memory.action == MemoryAction.FREE
    size = memory.size_bytes.clip(-MOST_BYTES, MOST_BYTES)
    change = np.where(back, -size, size)
    by_role = np.zeros((len(CATEGORIES), len(memory)), np.int64)
    by_role[role, np.arange(len(memory))] = change
    return memory.time_ns, np.cumsum(by_role, axis=1)


def _counter_series(trace: Trace) -> tuple[Int64, Int64] | None:
    times: Int64 | None = None
    by_role: Int64 | None = None
    for category in MemoryCategory:
        name = f"memory.{category.name.lower()}_bytes"
        if name not in trace.names:
            continue
        rows = trace.counter(name)
        if by_role is None:
            times = rows.time_ns
            by_role = np.zeros((len(CATEGORIES), len(rows)), np.int64)
        if by_role.shape[1] == len(rows):
            by_role[recorded_roles(np.asarray([category], np.uint8))[0]] += rows.value.clip(0, MOST_BYTES).astype(
                np.int64
            )
    return (times, by_role) if times is not None and by_role is not None and len(times) else None
