"""Puts what was recorded beside a run into the trace of the rank that it belongs to.

Such are memory snapshots, GPU telemetry and hardware counters of kernels.

A folder holds the ranks of one job. A file in it without any operator, call or kernel is no rank of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Counters, Int32, KernelMetrics, MemoryEvents, Segments


def with_companions(traces: Sequence[Trace]) -> list[Trace]:
    """The traces of the ranks, in their order, each with what lay beside it; all as they are if none is of a rank.

    What names no rank goes to the first one.
    """
    ranks = [trace for trace in traces if _is_rank(trace)]
    beside = [trace for trace in traces if not _is_rank(trace)]
    if not ranks:
        return list(traces)
    for companion in beside:
        numbers = [number for number, trace in enumerate(ranks) if trace.rank == companion.rank]
        number = numbers[0] if numbers and companion.rank is not None else 0
        ranks[number] = _with(ranks[number], companion)
    return ranks


def _is_rank(trace: Trace) -> bool:
    return any(
        map(len, (trace.device, trace.calls, trace.ops, trace.frames, trace.samples, trace.step_log))
    ) or not any(map(len, (trace.counters, trace.memory, trace.segments, trace.kernel_metrics)))


def _with(trace: Trace, companion: Trace) -> Trace:
    names = {name: number for number, name in enumerate(trace.names)}
    moved = np.asarray([names.setdefault(name, len(names)) for name in companion.names], np.int32)
    counters, memory, metrics = companion.counters, companion.memory, companion.kernel_metrics
    metrics = replace(
        metrics,
        kernel=_moved(metrics.kernel, moved),
        metric=_moved(metrics.metric, moved),
        unit=metrics.unit + np.int32(len(trace.texts)),
    )
    stack = np.where(memory.stack == MISSING, MISSING, memory.stack + len(trace.stacks))
    return replace(
        trace,
        names=tuple(names),
        texts=trace.texts + companion.texts,
        stacks=trace.stacks + companion.stacks,
        counters=Counters.concatenate((trace.counters, replace(counters, name=_moved(counters.name, moved)))),
        memory=MemoryEvents.concatenate((trace.memory, replace(memory, stack=stack.astype(np.int32)))),
        segments=Segments.concatenate((trace.segments, companion.segments)),
        kernel_metrics=KernelMetrics.concatenate((trace.kernel_metrics, metrics)),
        warnings=trace.warnings + companion.warnings,
    )


def _moved(column: Int32, moved: Int32) -> Int32:
    return moved[column] if len(moved) else column
