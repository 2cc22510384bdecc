"""The measure that a fix claims to move, before and after, read from one profiler window of each arm.

A gain without its mechanism is luck or a side effect, and is not kept. A measure is an accounting class (`compute`,
`exposed_comm`, `exposed_copy`, `idle`, `idle.input`, …), `sync_calls`, or a sum of those written with `+`. All are per
step; of several ranks, the one with most before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from diagnose.errors import InputError
from diagnose.measure import Measures
from diagnose.measure.views.names import named
from diagnose.model import Mechanism, Number
from diagnose.trace.readers import open_traces
from diagnose.trial.ab.result import Comparison
from diagnose.verdict import LEAST_SAVING

EXPLAINS = 0.25
"""A measure in time must fall by at least this part of the time saved: the profiler stretches what it watches."""
_FEWER = 0.9
"""A count must fall to this part of itself, or by `_ONE_LESS`: one call less of forty is what it claims to be."""
_ONE_LESS = 0.5  # per step, so that a call which is still made now and then, for a log, counts as moved
_READS_VALUE = re.compile("^aten::_local_scalar_dense$")


def mechanism(measure: str, comparison: Comparison) -> Mechanism:
    """Return how `measure` changed between the arms of a duel."""
    unit = "count" if measure == "sync_calls" else "ns"
    if measure == "idle.input" and comparison.input_ns is not None:
        # Known of every measured step, without a profiler, where the window sees only a few.
        waited = [round(value) for value in comparison.input_ns]
        return _judged(measure, waited[0], waited[1], unit, comparison)
    saving = comparison.saving.estimate if comparison.saving else 0.0
    steps_ns = comparison.step_ns, round(comparison.step_ns * (1 - saving))
    waited_ns = comparison.input_ns or (None, None)
    sides = zip(comparison.traces, steps_ns, waited_ns, strict=True)
    befores, afters = (_per_step(measure, *of_side) for of_side in sides)
    if not befores or len(befores) != len(afters):
        return Mechanism(measure, None, None, unit, None)
    rank = max(range(len(befores)), key=lambda at: befores[at][0])
    (before, window_ns), (after, _) = befores[rank], afters[rank]
    return _judged(measure, before, after, unit, comparison, window_ns)


def _judged(
    measure: str, before: Number, after: Number, unit: str, comparison: Comparison, window_ns: int | None = None
) -> Mechanism:
    """`window_ns` is the original's mean step as its window shows it: of uneven steps a window may hold the short ones
    only, in which no more than their own part of a saving can show.
    """
    if unit == "count":
        return Mechanism(measure, before, after, unit, after < _FEWER * before or before - after >= _ONE_LESS)
    saving, step_ns = comparison.saving, comparison.step_ns
    shown_ns = step_ns if window_ns is None else min(step_ns, window_ns)
    saved_ns = max(LEAST_SAVING, saving.estimate if saving else 0.0) * shown_ns
    return Mechanism(measure, before, after, unit, before - after >= EXPLAINS * saved_ns)


def _per_step(measure: str, paths: Sequence[Path], step_ns: int, waited_ns: float | None) -> list[tuple[Number, int]]:
    """A value for each rank, with the mean step that it is a part of, in ns; empty where the windows cannot tell.

    `step_ns` and `waited_ns`: how long measured steps took, and waited for input.
    """
    try:
        measures = [Measures(trace) for trace in open_traces(paths)] if paths else []
    except InputError:
        return []
    if any(rank.step_count == 0 for rank in measures):
        return []
    found = [_of_rank(measure, rank, step_ns, waited_ns) for rank in measures]
    return [each for each in found if each is not None] if None not in found else []


def _of_rank(measure: str, rank: Measures, step_ns: int, waited_ns: float | None) -> tuple[Number, int] | None:
    """One rank's value and mean step; None for a measure of another name.

    Of uneven steps a window holds a wait or none, and it begins after a rest of the loader's workers: so the waits of
    an idle device are those of measured steps. Where the host waits while the device works, these overlap: no measure
    is longer than the step.
    """
    names = measure.split("+")
    parts = [part for name in names if (part := _value(name, rank)) is not None]
    if len(parts) < len(names):
        return None
    count, window_ns = rank.step_count, round(rank.mean_ns)
    value = sum(parts) / count
    if "idle" in names and waited_ns is not None:
        waits_more_ns = waited_ns - rank.accounting.idle.get("input", 0) / count
        value, window_ns = min(value + waits_more_ns, step_ns), round(window_ns + max(0.0, waits_more_ns))
    return value if measure == "sync_calls" else round(value), window_ns


def _value(measure: str, rank: Measures) -> int | None:
    """Return the measure's value over all counted steps; None for a measure of another name."""
    accounting = rank.accounting
    if measure == "sync_calls":
        return len(rank.wait_calls) if rank.has_device else _value_reads(rank)
    if measure.startswith("idle."):
        return accounting.idle.get(measure.removeprefix("idle."))
    known = {
        "compute": accounting.compute,
        "exposed_comm": accounting.exposed_comm,
        "exposed_copy": accounting.exposed_copy,
        "idle": accounting.idle_ns,
    }
    return known.get(measure)


def _value_reads(rank: Measures) -> int:
    """Return how many calls read a value: without a device there is nothing to wait for, and those would wait."""
    ops = rank.trace.ops
    reads = named(rank.trace.names, ops.name, _READS_VALUE)
    start, end = rank.steps.host_start_ns[0], rank.steps.host_end_ns[-1]
    return int((reads & (ops.start_ns >= start) & (ops.start_ns < end)).sum())
