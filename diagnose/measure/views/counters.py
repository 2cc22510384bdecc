"""Counters of the device in use, read together: one row a moment, one column a counter.

table = readings(trace, ("gpu.sm_clock_mhz", "gpu.throttle_reasons"), first_ns)
table["gpu.sm_clock_mhz"]       # NaN where that moment lacks it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diagnose.trace import Trace
from diagnose.trace.schema import MISSING, Bool, Float64, Int32, Int64

_WARM_UP = 10
"""Steps of a live run after which its counters are taken: as many as it waits, at least, before it traces."""


def readings(trace: Trace, names: Sequence[str]) -> Mapping[str, Float64]:
    """Values of some counters of the busiest device, moment by moment, in order; all empty where none was read.

    On a live run these are the moments after its first steps, and until its last one.
    """
    counters = trace.counters
    numbers = [trace.names.index(name) if name in trace.names else -2 for name in names]
    rows = np.flatnonzero(np.isin(counters.name, numbers) & np.isfinite(counters.value))
    rows = rows[_in_use(trace, counters.device[rows].astype(np.int64))]
    rows = rows[after_warm_up(trace, counters.time_ns[rows])]
    moments, place = np.unique(counters.time_ns[rows], return_inverse=True)
    table = {}
    for name, number in zip(names, numbers, strict=True):
        mine = counters.name[rows] == number
        column = np.full(len(moments), np.nan, np.float64)
        column[place[mine]] = counters.value[rows[mine]]
        table[name] = column
    return table


def _in_use(trace: Trace, devices: Int64) -> np.typing.NDArray[np.bool_]:
    """Readings of the device that did the work; where it is not told which one it is, of the only one."""
    worked = trace.device.device[trace.device.device >= 0]
    busiest = most_common(worked) if len(worked) else MISSING
    if not (devices == busiest).any() and len(np.unique(devices)) == 1:
        return np.ones(len(devices), np.bool_)
    return np.asarray(devices == busiest, np.bool_)


def most_common(devices: Int32 | Int64) -> int:
    """The number that occurs most, the smallest of several such. A file may number devices as high as it likes."""
    numbers, count = np.unique(devices, return_counts=True)
    return int(numbers[count.argmax()])


def after_warm_up(trace: Trace, moments: Int64) -> Bool:
    """Return which moments of a live run lie after its first steps and until its last one; all, of another
    recording."""
    log = trace.step_log
    if len(log) <= _WARM_UP:
        return np.ones(len(moments), np.bool_)
    return np.asarray((moments >= log.end_ns[_WARM_UP - 1]) & (moments <= log.end_ns[-1]), np.bool_)
