"""How long work takes, several times over: by the device's own clock where there is a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

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

Agree = Callable[[int], int]
"""The largest of the ranks' numbers, on every rank."""


@dataclass(frozen=True)
class Plan:
    """How often something is repeated: the same on all ranks that take part."""

    blocks: int
    in_block: int

    @staticmethod
    def within(budget_ns: int, one_ns: int) -> Plan:
        """As many blocks as fit, within limits."""
        in_block = int(np.clip(_BLOCK_NS // max(one_ns, 1), 1, _MOST_IN_BLOCK))
        blocks = int(np.clip(budget_ns // max(one_ns * in_block, 1), _FEWEST_BLOCKS, _MOST_BLOCKS))
        return Plan(blocks, in_block)


def block_times_ns(work: Callable[[], object], device: torch.device, plan: Plan) -> list[int]:
    """Per block, the mean time of its repetitions."""
    return _on_device(work, plan) if device.type == "cuda" else _on_host(work, plan)


def once_ns(work: Callable[[], object], device: torch.device, agree: Agree = int) -> int:
    """Warm up, and say how long it roughly takes."""
    work()
    first = block_times_ns(work, device, Plan(1, 1))[0]
    # What was slow because it was first (buffers, connections, choosing an algorithm) is asked again.
    return agree(min(first, *block_times_ns(work, device, Plan(WARM_UPS - 2, 1))))


def point(size_bytes: int, times_ns: list[int]) -> Point:
    """The median with its quartiles."""
    low, middle, high = np.percentile(times_ns, (25, 50, 75))
    return Point(size_bytes, max(round(middle), 1), round(low), round(high))


def _on_device(work: Callable[[], object], plan: Plan) -> list[int]:
    torch.cuda.synchronize()
    marks = [_mark() for _ in range(plan.blocks + 1)]
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(plan.in_block):
            work()
        mark.record()
    torch.cuda.synchronize()
    lengths_ms = [before.elapsed_time(after) for before, after in pairwise(marks)]
    return [round(length * NS_PER_MS / plan.in_block) for length in lengths_ms]


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
