"""The figures of a run that are compared with another run's: a few kB of plain data that a file can keep as a baseline.

    portrait_of([Measures(trace) for trace in traces], diagnosis)

Of a job it is the rank with the longest mean step, as in its diagnosis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from diagnose.comparison.identity import Identity, identity_of
from diagnose.errors import InputError
from diagnose.measure import Measures
from diagnose.model import Accounting, Diagnosis, Finding
from diagnose.trace.schema import Int32, Int64

PORTRAIT = 1
"""Version of the file that keeps one."""
_MOST_BYTES = 64 << 20

_NEAR_WINDOW_STEPS = 6
"""Steps after the traced ones that are not like the others: the profiler stops, waits are sought."""
_AHEAD = 0.95
"""Steps shorter than this part of the device's work tell what the host did, which was ahead."""
_FEWEST_WATCHED = 20
_KEPT = 400
"""Kernels and operators are kept down to so many: the rest take next to nothing of a step."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """The time that one kernel or operator takes of a mean step."""

    count: float
    ns: float


@dataclass(frozen=True)
class Portrait:
    """One run. Times are ns; None is unknown."""

    source: tuple[str, ...]
    ranks: int
    device: str | None
    identity: Identity
    step_ns: tuple[int, ...]
    """Lengths of single steps: those that nobody traced where a run's log has them, else the counted ones."""
    traced: bool
    """Whether these are the counted steps of a recording, lengthened by whatever recording costs."""
    accounting: Accounting
    """The accounting of the mean counted step."""
    kernels: Mapping[str, TimeSpent] = field(default_factory=dict)
    """Kernels by name; their time is that of the device, overlap counted twice."""
    operators: Mapping[str, TimeSpent] = field(default_factory=dict)
    """Operators by name; the device time of what they launched themselves, or without a device their own time on the
    host."""
    findings: tuple[Finding, ...] = ()
    peak_memory_bytes: int | None = None
    version: int = PORTRAIT


def portrait_of(ranks: Sequence[Measures], diagnosis: Diagnosis) -> Portrait:
    """The portrait of a job's ranks. Raises ValueError without any."""
    slowest = max(ranks, key=lambda measures: measures.mean_ns)
    watched = _watched_ns(slowest)
    peaks = [one.trace.facts.peak_memory_bytes for one in ranks]
    known = [peak for peak in peaks if peak is not None]
    return Portrait(
        source=diagnosis.source,
        ranks=diagnosis.ranks,
        device=diagnosis.device,
        identity=identity_of(slowest),
        step_ns=tuple((slowest.steps.length_ns if watched is None else watched).tolist()),
        traced=watched is None,
        accounting=_mean(slowest),
        kernels=_kernels(slowest),
        operators=_operators(slowest),
        findings=diagnosis.findings,
        peak_memory_bytes=max(known, default=None),
    )


def _watched_ns(measures: Measures) -> Int64 | None:
    """Lengths of the steps of a live run that were watched without being traced, warm-up left out.

    None if they are too few, or shorter than the device's work: a host that runs ahead does not tell the pace.
    """
    ends, steps = measures.trace.step_log.end_ns, measures.steps
    if len(ends) < 2 or len(steps) == 0:
        return None
    lengths, begins = np.diff(ends), ends[:-1]
    first = int(np.searchsorted(ends, int(steps.host_start_ns[0])))
    last = int(np.searchsorted(ends, int(steps.host_end_ns[-1]))) + _NEAR_WINDOW_STEPS
    number = np.arange(len(begins))
    # The warm-up ends where steps were found steady, which is when the window opened: half of what came before it.
    quiet = ((number >= first // 2) & (number < first - 1)) | (number >= last)
    watched = lengths[quiet]
    if len(watched) < _FEWEST_WATCHED:
        return None
    was_ahead = measures.has_device and np.median(watched) < _AHEAD * np.median(measures.busy_ns)
    return None if was_ahead else watched


def _mean(measures: Measures) -> Accounting:
    whole, count = measures.accounting, max(measures.step_count, 1)
    return Accounting(
        compute=whole.compute // count,
        exposed_comm=whole.exposed_comm // count,
        exposed_copy=whole.exposed_copy // count,
        idle={cause: time // count for cause, time in whole.idle.items()},
    )


def _kernels(measures: Measures) -> dict[str, TimeSpent]:
    device = measures.trace.device
    rows = measures.rows_within_steps(measures.rows)
    return _totals(measures, device.name[rows], (device.end_ns - device.start_ns)[rows])


def _operators(measures: Measures) -> dict[str, TimeSpent]:
    trace, ops = measures.trace, measures.trace.ops
    if len(ops) == 0 or measures.step_count == 0:
        return {}
    if not measures.has_device:
        inside = measures.counted.contains(ops.start_ns)
        return _totals(measures, ops.name[inside], measures.op_tree.nesting.self_ns[inside])
    rows = measures.rows_within_steps(measures.rows & (measures.op_of_work >= 0))
    length = (trace.device.end_ns - trace.device.start_ns)[rows]
    return _totals(measures, ops.name[measures.op_of_work[rows]], length)


def _totals(measures: Measures, names: Int32, length_ns: Int64) -> dict[str, TimeSpent]:
    """Count and time by name, per step, the largest first."""
    steps, known = measures.step_count, names >= 0
    if steps == 0 or not known.any():
        return {}
    total = np.bincount(names[known], length_ns[known])
    count = np.bincount(names[known])
    largest = np.argsort(-total, kind="stable")[:_KEPT]
    return {
        measures.trace.names[name]: TimeSpent(float(count[name]) / steps, float(total[name]) / steps)
        for name in largest.tolist()
        if count[name]
    }


def to_baseline(portrait: Portrait) -> bytes:
    """The file's content: JSON that a version control system can show the changes of."""
    return msgspec.json.format(msgspec.json.encode(portrait), indent=1) + b"\n"


def read_baseline(path: Path) -> Portrait:
    """The portrait that a file keeps. Raises InputError where it holds none, or one of another version."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(path, "is too large to be a baseline; name one that `diagnose compare --baseline` wrote")
        content = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror or error}") from error
    try:
        portrait = msgspec.json.decode(content, type=Portrait)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            path, f"is no baseline of diagnose ({error}); delete it to keep the next run as the baseline"
        ) from error
    if portrait.version != PORTRAIT:
        raise InputError(
            path, "is the baseline of another version of diagnose; delete it to keep the next run as the baseline"
        )
    return portrait
