"""How long a step takes while no profiler is at work, as a live run knows it.

    watched_step_ns(trace)

It is that of the steady steps before the traced ones. But a program that lived on what its workers had made before it
began, or whose workers had left it the cores until then, goes on more slowly from the traced steps on: where its log
shows that, the steps after them tell. Shorter ones after them tell nothing: the device has nothing to do when a
profiler ends, and a host that runs ahead of it again is done with its steps sooner.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure.steps.outlier_steps import AFTER_WINDOW
from diagnose.trace import Trace

SLOWER = 1.5
"""Steps that take so many times as long as before are of another pace."""
FEWEST = 16
"""The fewest steps that tell."""


def watched_step_ns(trace: Trace) -> int | None:
    """Nanoseconds; None where nobody watched."""
    before_ns = trace.facts.step_ns_watched
    if not before_ns or trace.window_ns is None:
        return before_ns
    ends = np.sort(trace.step_log.end_ns)
    later = np.diff(ends[np.searchsorted(ends, trace.window_ns[1]) + AFTER_WINDOW :])
    if len(later) < FEWEST:
        return before_ns
    later_ns = int(np.median(later))
    return later_ns if later_ns > SLOWER * before_ns else before_ns
