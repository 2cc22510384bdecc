"""How long processes take that start as others leave them room: what the gatekeeper will do, before it does it.

Starts go on side by side, steps do not: there is one device, and on a host the cores are shared. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.trial.process.capacity import Memory, fitting


@dataclass(frozen=True, slots=True)
class Process:
    """The expected duration and memory of one process."""

    share: float
    """The process's memory as a multiple of what was seen of the program."""
    start_ns: int
    """The time until its first step."""
    steps_ns: int
    """The time from its first step to its end, with nothing beside it."""


def makespan_ns(processes: Sequence[Process], memory: Memory) -> int:
    """Return the time until the last process has ended, in ns. Whenever one ends, the first waiting one that fits
    beside the others starts.
    """
    waiting = list(processes)
    running: list[tuple[int, Process]] = []
    """Each with the moment of its first step."""
    now_ns = 0
    while waiting or running:
        for one in list(waiting):
            shares = [*(other.share for _, other in running), one.share]
            if not running or fitting(memory, shares) == len(shares):
                waiting.remove(one)
                running.append((now_ns + one.start_ns, one))
        begins_ns, done = min(running, key=lambda entry: entry[0])
        running.remove((begins_ns, done))
        now_ns = max(now_ns, begins_ns) + done.steps_ns
    return now_ns
