"""Counters over the run, thinned to what a small chart shows."""

from __future__ import annotations

import numpy as np

from diagnose.model import CounterSeries
from diagnose.trace import Trace
from diagnose.trace.schema import MISSING

MOST_POINTS = 200
"""The most points of a series."""
MOST_SERIES = 48
_FEWEST_POINTS = 3
"""Fewer are no course."""


def counter_series(trace: Trace) -> tuple[CounterSeries, ...]:
    """One series a counter and device that was read several times, by name."""
    table = trace.counters
    rows = np.flatnonzero(np.isfinite(table.value) & (table.name != MISSING))
    if not len(rows):
        return ()
    begin = int(table.time_ns[rows].min())
    keys, series = np.unique(np.stack([table.name[rows], table.device[rows]]), axis=1, return_inverse=True)
    found = []
    for number, (name, device) in enumerate(keys.T.tolist()):
        mine = rows[series == number]
        if len(mine) < _FEWEST_POINTS:
            continue
        parts = np.array_split(mine[np.argsort(table.time_ns[mine], kind="stable")], min(len(mine), MOST_POINTS))
        times = tuple(int((table.time_ns[part] - begin).mean()) for part in parts)
        found.append(
            CounterSeries(trace.names[name], device, times, tuple(float(table.value[part].mean()) for part in parts))
        )
    return tuple(sorted(found, key=lambda one: (one.name, one.device))[:MOST_SERIES])
