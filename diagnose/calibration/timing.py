"""Times work repeatedly, by the device's own clock where there is a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from diagnose.calibration.record import Point
from diagnose.units import NS_PER_MS

_BLOCK_NS = 2 * NS_PER_MS
"""Short work is repeated for so long between two looks at the clock."""
_MOST_IN_BLOCK = 50
WARM_UPS = 4
"""Calls before anything is measured."""
_FEWEST_BLOCKS, _MOST_BLOCKS = 5, 40
FEWEST_CALLS = WARM_UPS + _FEWEST_BLOCKS
"""Calls of work that is longer than a block, however short the time for it."""

_LAUNCH_NS = 75_000
"""More than the host takes to launch one collective: 20 to 60 µs."""
_CYCLES_A_CALL = 2 * _LAUNCH_NS
"""Twice `_LAUNCH_NS` in cycles of a device's clock, which runs at up to 2 GHz."""

Agree = Callable[[int], int]
"""The largest of the ranks' numbers, on every rank."""


@dataclass(frozen=True)
class Plan:
    """The number of repetitions, the same on all ranks that take part."""

    blocks: int
    in_block: int

    @staticmethod
    def within(budget_ns: int, one_ns: int) -> Plan:
        """Return the plan with as many blocks as fit the budget, within limits."""
        in_block = int(np.clip(_BLOCK_NS // max(one_ns, 1), 1, _MOST_IN_BLOCK))
        block_ns = (one_ns + (_LAUNCH_NS if in_block > 1 else 0)) * in_block
        blocks = int(np.clip(budget_ns // max(block_ns, 1), _FEWEST_BLOCKS, _MOST_BLOCKS))
        return Plan(blocks, in_block)


def block_times_ns(work: Callable[[], object], device: torch.device, plan: Plan) -> list[int]:
    """Per block of the plan, the mean time of its repetitions, in ns: by events on a GPU, by the clock on a CPU."""
    return _on_device(work, plan) if device.type == "cuda" else _on_host(work, plan)


def once_ns(work: Callable[[], object], device: torch.device, agree: Agree = int) -> int:
    """Warm up, and say how long it roughly takes."""
    work()
    first = block_times_ns(work, device, Plan(1, 1))[0]
    # What was slow because it was first (buffers, connections, choosing an algorithm) is asked again.
    return agree(min(first, *block_times_ns(work, device, Plan(WARM_UPS - 2, 1))))


def point(size_bytes: int, times_ns: list[int]) -> Point:
    """A point of a curve over sizes: the median of the times of blocks, at least 1 ns, and their quartiles."""
    low, middle, high = np.percentile(times_ns, (25, 50, 75))
    return Point(size_bytes, max(round(middle), 1), round(low), round(high))


def _on_device(work: Callable[[], object], plan: Plan) -> list[int]:
    torch.cuda.synchronize()
    marks = [(_mark(), _mark()) for _ in range(plan.blocks)]
    for begin, end in marks:
        # Let the device wait while the host launches a block: small work is else as slow as it is launched
        wait = getattr(torch.cuda, "_sleep", None)
        if wait is not None and plan.in_block > 1:
            wait(plan.in_block * _CYCLES_A_CALL)
        begin.record()
        for _ in range(plan.in_block):
            work()
        end.record()
    torch.cuda.synchronize()
    return [round(begin.elapsed_time(end) * NS_PER_MS / plan.in_block) for begin, end in marks]


def _mark() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch does not say


def _on_host(work: Callable[[], object], plan: Plan) -> list[int]:
    found = []
    for _ in range(plan.blocks):
        begin = time.perf_counter_ns()
        for _ in range(plan.in_block):
            work()
        found.append((time.perf_counter_ns() - begin) // plan.in_block)
    return found
