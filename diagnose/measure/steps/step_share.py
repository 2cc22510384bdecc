"""Time of a recording as a part of its steps, in words that divide: `8.00 ms of each traced step of 13.0 ms (62 %)`."""

from __future__ import annotations

from diagnose.measure.steps.timeline import Timeline
from diagnose.trace.intervals import Intervals
from diagnose.units import format_ns, format_share


def of_traced_step(measures: Timeline, time: Intervals) -> str:
    """The mean time per counted step, the mean step as it was recorded, and the one over the other.

    A finding's own share is of `Diagnosis.step_ns`, the step without what the profiler costs and with what other steps
    of a live run lose. Time that is read off the recording is no part of that one, so that its step stands beside it.
    """
    return of_step(int(measures.per_step(time).sum()), measures.total_ns, measures.step_count, "traced step")


def of_step(part_ns: float, whole_ns: float, steps: int, name: str = "step") -> str:
    """Return `12 ms of each step of 80 ms (15 %)` for sums in ns over `steps` steps (at least one).

    `name` is the word for such a step.
    """
    share = format_share(part_ns / whole_ns) if whole_ns else "0 %"
    return f"{format_ns(part_ns / steps)} of each {name} of {format_ns(whole_ns / steps)} ({share})"
