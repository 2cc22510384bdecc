"""The time for which training was ready to run and had no core, as the kernel counts it for each thread.

Training is the process's first thread, and while that waits in `backward`, autograd's threads: torch runs the backward
pass of what is on a device in a thread of that device (`pt_autograd_0`); that of tensors on the processor runs in the
thread that asked for it. Who runs ahead of training is left out, for it waits for a core at no cost to the step most of
the time: workers of a loader, the thread that pins their batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

_BACKWARD = "pt_autograd_"
"""The beginning of the names of autograd's threads; the device's number follows."""


class _Spent(NamedTuple):
    """The times that the kernel has counted for a thread since it began."""

    ran_ns: int
    queued_ns: int


class RunQueue:
    """The threads of one process that training goes on in, one at a time."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._pid = pid
        self._tasks = proc / str(pid) / "task"
        self._clock_ns = clock_ns
        self._there: frozenset[int] = frozenset()
        self._looked_at: frozenset[int] = frozenset()  # twice: their names are known
        self._names: dict[int, str] = {}  # of threads that have one of autograd's
        self._spent, self._since = self._read(), clock_ns()

    @property
    def threads(self) -> tuple[int, ...]:
        """The first thread, and one of autograd for each device, as of the last reading."""
        return tuple(self._spent)

    def queued_percent(self) -> float | None:
        """Time for which one of them was ready and none had a core, of the time since the last call.

        None where the kernel does not say. The first thread waits while another runs, so that their times can be added,
        but for moments: one that has done its part may lose its core before it sleeps, and is ready for nothing. Such
        moments are no loss while the other runs, which is why no time counts in which one of them did.
        """
        (before, since), (after, now) = (self._spent, self._since), (self._read(), self._clock_ns())
        self._spent, self._since = after, now
        if self._pid not in before or self._pid not in after or now <= since:
            return None
        # What a thread that is new has spent may lie before: it counts from its second reading on.
        ran = {tid: after[tid].ran_ns - before[tid].ran_ns for tid in after if tid in before}
        queued = sum(after[tid].queued_ns - before[tid].queued_ns for tid in ran)
        # Devices may run their backward passes at once: together they ran for no less than the busiest of them.
        had_core = ran.pop(self._pid) + max(ran.values(), default=0)
        return 100 * max(0, min(queued, now - since - had_core)) / (now - since)

    def _read(self) -> dict[int, _Spent]:
        read = ((tid, self._spent_by(tid)) for tid in (self._pid, *self._backward()))
        return {tid: spent for tid, spent in read if spent is not None}

    def _spent_by(self, tid: int) -> _Spent | None:
        """None where the kernel does not count, and of a thread that has ended."""
        try:
            ran, queued, *_ = (self._tasks / str(tid) / "schedstat").read_text().split()
            return _Spent(int(ran), int(queued))
        except (OSError, ValueError):
            return None

    def _backward(self) -> Iterable[int]:
        """Autograd's threads, one for each device.

        A thread gets its name when it first runs, and has its maker's until then: each is asked at two readings. What a
        thread of autograd starts (OpenMP's threads, for operators on the processor) keeps its name for good; the eldest
        of a name is the one that makes others wait.
        """
        try:
            # The kernel lists them by age. Sorted, numbers that began again from below would come first.
            tids = [int(path.name) for path in self._tasks.iterdir()]
        except OSError:
            tids = []
        there = frozenset(tids)
        self._names = {tid: name for tid, name in self._names.items() if tid in self._looked_at & there}
        for tid in there - self._looked_at:
            if (name := self._name_of(tid)).startswith(_BACKWARD):
                self._names[tid] = name
        self._looked_at, self._there = self._there & there, there
        eldest: dict[str, int] = {}
        for tid in tids:
            if tid in self._names and tid != self._pid:
                eldest.setdefault(self._names[tid], tid)
        return eldest.values()

    def _name_of(self, tid: int) -> str:
        """Empty where it has ended."""
        try:
            return (self._tasks / str(tid) / "comm").read_text().strip()
        except OSError:
            return ""
