"""Bounds how long training stands still while a window closes: the profiler puts together what its operators left.

The pause grows with the number of records, which no profiler tells before it is stopped. Autograd numbers the operators
that it will differentiate, so that a step's difference of these numbers tells how much a step of the window will leave.
"""

from __future__ import annotations

from types import ModuleType

MOST_PAUSE_NS = 10_000_000_000
"""The longest pause for which a window of more than one step is opened: what a job of ten minutes may bear; chosen."""
_OPERATOR_NS = 280_000
"""The pause for each operator with a gradient: 5.1 s of processor time for six steps of 1,500 linear layers, each of
two such operators, which left 375 thousand records (`benchmarks/RESULTS.md`)."""
_UNCOUNTED_STEPS = 2
"""Steps of a window that do not count: the first and the last one are recorded as well."""


class OperatorCount:
    """The number of operators with a gradient in a step, read at the ends of steps on the training thread."""

    def __init__(self) -> None:
        self._last = 0
        self.per_step = 0
        """The operators of the newest step; 0 while that is unknown."""

    def step_ended(self, torch: ModuleType | None) -> None:
        """Take the newest step's number. Does nothing where this torch does not tell."""
        read = getattr(getattr(getattr(torch, "_C", None), "_autograd", None), "_get_sequence_nr", None)
        if read is None:
            return
        now = int(read())
        self.per_step, self._last = (now - self._last if self._last else 0), now


def steps_within(pause_ns: int, operators: int, wanted: int) -> int:
    """Return how many of `wanted` steps, one at least, a window may count for its end to take no longer than this."""
    if operators <= 0:
        return wanted
    return max(1, min(wanted, pause_ns // (operators * _OPERATOR_NS) - _UNCOUNTED_STEPS))
