"""How long fixers may look at the program's files before anything is tried: each of them, and all together.

To look at a large program can take longer than to measure it. A fixer whose time is over is not asked again, and that
is told by its name; those that promise most are asked first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from diagnose.source.tree.time_limit import TookTooLong, time_limit
from diagnose.units import NS_PER_S, format_ns

EACH_NS = 10 * NS_PER_S
"""All fixers are meant to be asked within 5 s about a program of 300 files; one alone gets twice that."""
SHARE = 10
"""All of them get one part in so many of a budget. The rest is for measuring."""
LEAST_NS = 5 * NS_PER_S
"""However short the budget is."""
PROMISING = 0.1
"""A share of the step: a fixer that promises so much is asked also when all time for asking is over, and gets more of
it. No budget is worth more elsewhere."""
PROMISING_SHARE = 4
"""One such fixer may take one part in so many of a budget."""
LATE_NS = 2 * NS_PER_S
"""The time after the budget's end at which no fixer is asked any more, whatever it promises: the budget is exceeded
by no more than 5 s, and a report follows."""


@dataclass
class AskingTime:
    """The time that is left for asking."""

    left_ns: int | None = None
    """The time left for all fixers; None: no limit but that of each."""
    promising_ns: int = EACH_NS
    """The time limit of a fixer that promises much."""
    clock: Callable[[], int] = field(default=time.process_time_ns, repr=False)
    """Without a budget, time in which other processes have the cores does not count."""
    over: dict[str, str] = field(default_factory=dict)
    """Fixers that are not asked again, with what is told of them."""
    end_ns: int | None = None
    """The time on the clock at which no fixer is asked any more; None: never."""

    @classmethod
    def of(cls, budget_ns: int | None, clock: Callable[[], int] = time.monotonic_ns) -> AskingTime:
        """The share of a budget that begins now; None: there is none, and processor time is what counts."""
        if budget_ns is None:
            return cls()
        each_ns, end_ns = max(EACH_NS, budget_ns // PROMISING_SHARE), clock() + budget_ns + LATE_NS
        return cls(max(LEAST_NS, budget_ns // SHARE), each_ns, clock, end_ns=end_ns)

    @contextmanager
    def limited(self, fixer: str, promised_share: float = 0.0) -> Iterator[None]:
        """Ask a fixer within. Raises TookTooLong, with what to tell, where there is no time for it."""
        if fixer in self.over:
            raise TookTooLong(self.over[fixer])
        limit_ns = EACH_NS if self.left_ns is None else min(EACH_NS, self.left_ns)
        if promised_share >= PROMISING:
            limit_ns = self.promising_ns
        if self.end_ns is not None:
            limit_ns = max(0, min(limit_ns, self.end_ns - self.clock()))
        if limit_ns == 0:
            raise TookTooLong("no time was left to see what it would change")
        began_ns = self.clock()
        try:
            with time_limit(limit_ns, self.clock):
                yield
        except TookTooLong:
            self.over[fixer] = f"to see what it would change took longer than {format_ns(limit_ns)}, and was given up"
            raise TookTooLong(self.over[fixer]) from None
        finally:
            if self.left_ns is not None:
                self.left_ns = max(0, self.left_ns - (self.clock() - began_ns))
