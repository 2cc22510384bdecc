"""Launch calls that wait because the queue to the device is full.

    waits_for_room(trace, launches)      # a mask over trace.calls

A host that runs ahead of the device is held in a launch call once about a thousand pieces of work are queued. Its steps
then take as long as the device's, though its own work takes less. The time in such calls is nobody's work: a faster
device, or one with less to do, shortens it.

A recording that begins while the host is ahead does not show what was queued before. Until the first recorded piece of
work begins, nobody knows how full the queue is, and a launch that takes long among many others waits for room, too.
"""

from __future__ import annotations

import numpy as np

from diagnose.measure.steps.idle import REFILL_NS
from diagnose.measure.views.launches import Launches, queue_depth
from diagnose.trace import Trace
from diagnose.trace.schema import Bool

FULL = 900
"""A stream's queue takes 1,022 to 1,024 launches on CUDA; the recording sees up to 1,021 of them. It also holds what
is not recorded as device work (events), hence the margin."""

FILLING = 500
"""The depth of the queue from which on a launch of more than REFILL_NS waits as well: compiled programs, and
operators that record events, were held at depths from 730 on (an H200)."""

AMONG = 16
"""The number of launches before it that have not begun which tells a host that is ahead from one that starts up."""

USUAL_NS = 10_000
"""A launch call takes 2 to 10 µs; where most of a recording's wait, their median says nothing."""


def launch_usually_ns(launches: Launches) -> int:
    """Return the usual time of a launch call that does not wait, in ns."""
    took = (launches.end_ns - launches.start_ns)[launches.linked]
    return min(int(np.median(took)), USUAL_NS) if len(took) else USUAL_NS


def waits_for_room(trace: Trace, launches: Launches) -> Bool:
    """Return which calls launch work and wait for room in a full queue, by the depth of the queue and their length."""
    found = np.zeros(len(trace.calls), np.bool_)
    linked = launches.linked
    if not linked.any():
        return found
    depth, took = queue_depth(trace, launches), launches.end_ns - launches.start_ns
    unseen = (launches.start_ns < trace.device.start_ns[linked].min()) & (depth >= AMONG)
    full = ((depth >= FULL) | unseen) & (took > 2 * launch_usually_ns(launches))
    filling = (depth >= FILLING) & (took > REFILL_NS)
    found[launches.call[linked & (full | filling)]] = True
    return found
