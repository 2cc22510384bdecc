"""Puts what was recorded beside a run into the trace of the rank that it belongs to.

Such are memory snapshots, GPU telemetry and hardware counters of kernels.

A folder holds the ranks of one job. A file in it without any operator, call or kernel is no rank of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.readers.inputs import OfRank
from diagnose.trace.readers.memory.memory_snapshot import with_snapshot
from diagnose.trace.schema import Counters, Int32, KernelMetrics


def with_companions(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of the ranks, in their order, each with what lay beside it; all as they are if none is of a rank."""
    return [
        reduce(_with, (traces[number] for number in beside), traces[rank])
        for rank, beside in companions_of(traces, [is_rank(trace) for trace in traces])
    ]


def companions_of(given: Sequence[OfRank], of_rank: Sequence[bool]) -> list[tuple[int, list[int]]]:
    """Positions of the ranks, in their order, each with those of what lay beside it; every position if none is a rank.

    What names no rank goes to the first one.
    """
    ranks = [number for number, is_one in enumerate(of_rank) if is_one] or list(range(len(given)))
    companions: dict[int, list[int]] = {number: [] for number in ranks}
    named = {given[number].rank: number for number in reversed(ranks) if given[number].rank is not None}
    for number in range(len(given)):
        if number not in companions:
            companions[named.get(given[number].rank, ranks[0])].append(number)
    return list(companions.items())


def is_rank(trace: Trace) -> bool:
    """Whether the recording is a rank's; one that holds only sidecar data is not."""
    return any(
        map(len, (trace.device, trace.calls, trace.ops, trace.frames, trace.samples, trace.step_log))
    ) or not any(map(len, (trace.counters, trace.memory, trace.segments, trace.kernel_metrics)))


def _with(trace: Trace, companion: Trace) -> Trace:
    names = {name: number for number, name in enumerate(trace.names)}
    moved = np.asarray([names.setdefault(name, len(names)) for name in companion.names], np.int32)
    counters, metrics = companion.counters, companion.kernel_metrics
    metrics = replace(
        metrics,
        kernel=_moved(metrics.kernel, moved),
        metric=_moved(metrics.metric, moved),
        unit=metrics.unit + np.int32(len(trace.texts)),
    )
    return with_snapshot(
        replace(
            trace,
            names=tuple(names),
            texts=trace.texts + companion.texts,
            counters=Counters.concatenate((trace.counters, replace(counters, name=_moved(counters.name, moved)))),
            kernel_metrics=KernelMetrics.concatenate((trace.kernel_metrics, metrics)),
            warnings=trace.warnings + companion.warnings,
        ),
        companion,
    )


def _moved(column: Int32, moved: Int32) -> Int32:
    return moved[column] if len(moved) else column
