"""The memory of a process grows by a program's leak, and not by a profiler's window in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diagnose import plugins
from diagnose.measure import Measures
from diagnose.rule import Claim, Trace, drawn
from diagnose.trace.schema import StepLog

STEP_NS = 12 * 10**6
STEP = """
    host: oooooooooooo
    step:             |
"""


def traced(readings: Sequence[int], window: tuple[int, int]) -> Trace:
    """A run of steps with a reading at the end of each, of which those of a window were traced."""
    count = len(readings) - 1
    log = StepLog.build({"end_ns": range(STEP_NS, (count + 1) * STEP_NS, STEP_NS)})
    trace = drawn(STEP, repeat=count, step_log=log, counted={"host.process_rss_bytes": readings})
    return replace(trace, window_ns=(window[0] * STEP_NS, window[1] * STEP_NS))


def leaks(trace: Trace) -> bool:
    found = plugins.load().rules["leaking-memory"].check(Measures(trace))
    return any(isinstance(answer, Claim) for answer in found)


MEASURED = (
    *(343, 344, 352, 352, 321, 323, 320, 353, 353, 320, 322, 320, 322, 323, 320),
    *(364, 388, 412, 428, 452, 476, 668, 668, 676, 352, 370, 387, 387, 387, 388),
    *(389, 389, 389, 389, 389, 389, 389, 397, 397, 397),
    *(398, 398, 398, 398, 398, 398, 398, 398, 398, 398, 398, 398),
)
"""MiB of a program that keeps nothing, with a window of steps 14 to 18 and its trace written until step 23."""


def test_a_window_that_fills_the_memory_of_a_process_is_no_leak() -> None:
    assert not leaks(traced([value << 20 for value in MEASURED], (14, 18)))


@pytest.mark.parametrize("steps", [22, 51], ids=["before the window", "after it"])
def test_a_leak_goes_on_outside_of_the_window(steps: int) -> None:
    in_window = [0] * 15 + [100] * 36
    assert leaks(traced([(320 + 8 * at + more) << 20 for at, more in enumerate(in_window[:steps])], (14, 18)))
