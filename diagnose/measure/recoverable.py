"""How much shorter the counted steps would be if some stretches of time were gone.

From the accounting alone, for now: this is the one place where a replay of the dependency graph would answer instead.

Two bounds hold. Idle time gives back at most its length, as the device could have worked on; busy time gives back at
most its own. And where the host was made to wait, removing the wait leaves a step that still needs the longer of what
the host does without waiting and what the device does: `without_waiting_ns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import Int64

if TYPE_CHECKING:
    from diagnose.measure import Measures


def recoverable_ns(measures: Measures, intervals: Intervals) -> int:
    """Time that all counted steps together would lose without `intervals`: their length within the steps."""
    return int(_per_step(measures, intervals).sum())


def without_waiting_ns(measures: Measures, intervals: Intervals) -> int:
    """The same, where the stretches are idle because the host waited for the device.

    Per step no more than step − max(host work, device work): a host that never waits still has its own work to do.
    """
    room = measures.steps.length_ns - np.maximum(measures.host_work_ns, measures.busy_ns)
    return int(np.minimum(_per_step(measures, intervals), np.maximum(room, 0)).sum())


def _per_step(measures: Measures, intervals: Intervals) -> Int64:
    return intervals.covered(measures.steps.start_ns, measures.steps.end_ns)
