"""A host that is ahead of the device is held in launch calls: which ones, and that their time is nobody's work."""

from __future__ import annotations

import numpy as np

from diagnose.measure import Measures
from diagnose.measure.replay.savings import scaled_ns
from diagnose.measure.steps.full_queue import waits_for_room
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn

KERNELS = {"K": "other_kernel"}


def recording(before: int, count: int = 40) -> Trace:
    """Launches of three columns, a pause of one; the device begins so many launches later than the host."""
    return drawn(
        f"""
        host: {"lll." * count}
        gpu : {"    " * before}{"kkkkKKKK" * (count // 2)}
        """,
        unit_ns=10_000,
        kernels=KERNELS,
    )


def held(trace: Trace) -> list[int]:
    return np.flatnonzero(waits_for_room(trace, Measures(trace).launches)).tolist()


def test_long_launches_before_any_recorded_work_wait_for_what_was_queued_before() -> None:
    assert held(recording(before=20)) == [16, 17, 18, 19]


def test_long_launches_to_a_device_that_keeps_up_do_not_wait() -> None:
    assert held(recording(before=0)) == []


def ahead_of_the_device(queued: int = 930, per_step: int = 400) -> Trace:
    """Kernels of four columns, launches of one and a pause, until so many are queued; then each waits for a kernel."""
    freely, total = 2 * queued, 2 * queued + 3 * per_step
    begins = [2 * min(at, freely) + 4 * max(at - freely, 0) for at in range(0, total, per_step)]
    marks = "".join("|" if column in begins[1:] else "." for column in range(begins[-1] + 1))
    return drawn(
        f"""
        host: {"l." * freely}{"lll." * (total - freely)}
        gpu : .{"kkkkKKKK" * (total // 2)}
        step: {marks}
        """,
        unit_ns=10_000,
        kernels=KERNELS,
    )


def test_a_held_host_does_not_hinder_a_faster_device() -> None:
    measures = Measures(ahead_of_the_device())
    assert len(held(measures.trace)) > 1_000
    assert measures.replay.off == 0
    # The host issues a kernel in the two columns that the device would take for it.
    gain = scaled_ns(measures, np.full(len(measures.trace.device), 0.5))
    assert gain == measures.total_ns // 2
