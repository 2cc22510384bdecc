"""Where one training step ends and the next begins, as the host saw it.

In order of trust: the profiler's own step marks; ends of `optimizer.step` (from the recording or from the live log of
steps); annotations that repeat. Several optimizers in one iteration are one step, several backward passes before an
optimizer are one step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Int64, RangeKind, Ranges

_DIGITS = re.compile(r"\d+")
_REGULAR = 0.5  # an annotation marks steps only if nine in ten of its periods lie within ±50 % of their median
_FAIR = 0.25  # … and only if this part of the device's work falls where it repeats: set-up repeats things too
_LONGEST_CYCLE = 8  # optimizers in one iteration
_WARM_UP = 10  # logged steps skipped where no profiler window says which ones are steady


@dataclass(frozen=True, eq=False)
class Marks:
    """Borders of steps on the host's clock: step i lies between `border_ns[i]` and `border_ns[i + 1]`."""

    border_ns: Int64
    found_by: str


def training_thread(trace: Trace) -> int:
    """The thread of the training loop (index into `trace.threads`): it steps, loads, or is the busiest; -1 if none."""
    for kind in (RangeKind.OPTIMIZER, RangeKind.STEP, RangeKind.INPUT):
        threads = trace.ranges.thread[(trace.ranges.kind == kind) & (trace.ranges.thread != MISSING)]
        if len(threads):
            return int(np.bincount(threads).argmax())
    thread = np.concatenate((trace.ops.thread, trace.calls.thread))
    length = np.concatenate((trace.ops.end_ns - trace.ops.start_ns, trace.calls.end_ns - trace.calls.start_ns))
    known = thread != MISSING
    if not known.any():
        return MISSING
    return int(np.bincount(thread[known], weights=length[known]).argmax())


def host_marks(trace: Trace) -> Marks | None:
    """The borders of steps; None where nothing marks at least one whole step."""
    steps = _of_kind(trace, RangeKind.STEP)
    # A wrapper (ZeroRedundancyOptimizer, a scaler) calls the optimizer it wraps: only the outermost range counts
    ranges = _of_kind(trace, RangeKind.OPTIMIZER)
    outer = np.concatenate(([True], ranges.end_ns[1:] > np.maximum.accumulate(ranges.end_ns)[:-1]))
    optimizers = ranges.where(outer[: len(ranges)])
    # Fewer optimizer steps than marks: the program marks micro-steps of an accumulation.
    if len(steps) and not 2 <= len(optimizers) < len(steps):
        starts = np.unique(steps.start_ns)
        by_torch = any(trace.names[name].startswith("ProfilerStep") for name in np.unique(steps.name).tolist())
        border = np.append(starts, max(int(steps.end_ns.max()), int(starts[-1]) + 1))
        return Marks(border, "profiler marks" if by_torch else "nvtx")
    ends = _optimizer_ends(trace, optimizers)
    logged = _logged(trace)
    if len(logged) >= 2 and len(logged) >= len(ends):
        return Marks(logged, "optimizer")
    if len(ends) >= 2:
        return Marks(ends, "optimizer")
    return _annotated(trace)


def _of_kind(trace: Trace, kind: RangeKind) -> Ranges:
    ranges = trace.ranges.where(trace.ranges.kind == kind)
    return ranges.where(np.lexsort((-ranges.end_ns, ranges.start_ns)))


def _optimizer_ends(trace: Trace, ranges: Ranges) -> Int64:
    """Ends of the last optimizer of each iteration."""
    if len(ranges) < 2:
        return ranges.end_ns
    inputs = _of_kind(trace, RangeKind.INPUT).start_ns
    if 2 <= len(inputs) < len(ranges):
        # Fewer batches than optimizer steps: the last optimizer before a batch is asked for ends the step.
        batches = np.searchsorted(inputs, ranges.end_ns, side="left")
        last: Bool = np.append(batches[1:] != batches[:-1], True)
        return ranges.where(last).end_ns
    cycle = _cycle(trace, ranges)
    return ranges.end_ns[cycle - 1 :: cycle]


def _cycle(trace: Trace, ranges: Ranges) -> int:
    """Return how many optimizers take turns: the shortest period of what tells them apart (names, then operators
    inside)."""
    starts = np.sort(trace.ops.start_ns)
    inside = np.searchsorted(starts, ranges.end_ns) - np.searchsorted(starts, ranges.start_ns)
    for identity in (ranges.name, inside):
        if (identity == identity[0]).all():
            continue
        for period in range(2, min(_LONGEST_CYCLE, len(ranges) // 2) + 1):
            if (identity[period:] == identity[:-period]).all():
                return period
    return 1


def _logged(trace: Trace) -> Int64:
    """Borders from the live log: inside the recorded window where there is one, else of all steps after warming up."""
    ends = np.sort(trace.step_log.end_ns)
    recorded = _extent(trace)
    if recorded is None:
        return ends[min(_WARM_UP, len(ends) // 4) :]
    start, end = recorded
    inside = ends[(ends > start) & (ends <= end)]
    if len(inside) == 0 or len(inside) == len(ends) or not (ends <= start).any():
        return inside
    # The window opened right after a step had ended. Its first step counts unless opening the profiler made it slow.
    first = int(inside[0]) - start
    others = np.diff(inside)
    return np.concatenate(([start], inside)) if len(others) and first <= others.max() else inside


def _extent(trace: Trace) -> tuple[int, int] | None:
    tables = [table for table in (trace.device, trace.calls, trace.ops) if len(table)]
    if not tables:
        return None
    start = min(int(table.start_ns.min()) for table in tables)
    end = max(int(table.end_ns.max()) for table in tables)
    if trace.window_ns is None:
        return start, end
    return max(start, trace.window_ns[0]), max(end, trace.window_ns[1])


def _annotated(trace: Trace) -> Marks | None:
    """Borders from the annotation (numbers in its name aside) that repeats most regularly and reaches furthest."""
    best: tuple[int, int, Int64, str] | None = None
    for kind, found_by in ((RangeKind.USER, "nvtx"), (RangeKind.INPUT, "nvtx")):
        ranges = _of_kind(trace, kind)
        plain = np.array([*(hash_free(name) for name in trace.names), ""], np.str_)[ranges.name]
        for name in np.unique(plain):
            starts = np.unique(ranges.start_ns[plain == name])
            if len(starts) < 3 or not _regular(starts) or not _holds_work(trace, starts):
                continue
            reach = int(starts[-1] - starts[0])
            if best is None or (reach, -len(starts)) > best[:2]:
                best = (reach, -len(starts), starts, found_by)
    return None if best is None else Marks(best[2], best[3])


def _holds_work(trace: Trace, starts: Int64) -> bool:
    """Whether a fair part of the device's work ran between the first of some marks and one period after the last."""
    device = trace.device
    length = device.end_ns - device.start_ns
    period = int(starts[-1] - starts[0]) // (len(starts) - 1)
    inside = (device.start_ns >= starts[0]) & (device.start_ns < starts[-1] + period)
    return len(device) == 0 or int(length[inside].sum()) >= _FAIR * int(length.sum())


def hash_free(name: str) -> str:
    """A name without its numbers: `step_12` and `step_13` are one."""
    return _DIGITS.sub("", name)


def _regular(starts: Int64) -> bool:
    periods = np.diff(starts)
    median = np.median(periods)
    near: Bool = np.abs(periods - median) <= _REGULAR * median
    return bool(median > 0 and near.mean() >= 0.9)
