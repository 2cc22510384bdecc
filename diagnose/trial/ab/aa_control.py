"""What a machine can tell from nothing: the original against itself, as closely as it takes, and closer where it must.

What promises to halve a step needs no resolution of a percent. So the control ends once it is fine beside what is
promised, and of a budget it takes no more than a share: what it has seen by then is the resolution, however coarse.
Pairs of one generation say nothing of the luck of its processes, which is then taken to be as large as it ever was. It
goes on, with fresh processes, when a verdict hangs on it: a saving that is enough by itself, and only not beyond what
the control has seen so far. The trial itself is over by then, and not one pair is added to it; what is
asked again is the machine, once in a session, and all pairs of both looks count. That is a second look nevertheless,
and taken only where it can let a fix pass: how rarely a patch that changes nothing is kept so, tests simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.model import Interval
from diagnose.trial.ab.result import Comparison
from diagnose.verdict import (
    CLEAR_SAVING,
    LEAST_GENERATIONS,
    LEAST_PAIRS,
    LEAST_SAVING,
    Pair,
    estimate,
    resolution,
)

FINE_BESIDE_LARGEST, FINE_BESIDE_SMALLEST = 0.1, 1 / 3
"""Of the largest and of the smallest saving that is promised: so coarse may a first control be, beside either."""
MOST_OF_BUDGET = 3
"""One part in so many of the time that is left may go by before a control has to do with few pairs; and where another
generation would take more than such a part of what is left then, with the one that there is."""


@dataclass(frozen=True)
class AAControl:
    """The original against itself, with the schedule of the trials."""

    interval: Interval
    resolution: float
    pairs: int
    generations: int
    step_ns: int
    alternated: bool = False


class AAControls:
    """What the looks of a session have seen together."""

    def __init__(self, most_pairs: int) -> None:
        """`most_pairs` of one look: after so many it was as fine as it gets."""
        self.latest: AAControl | None = None
        self.fine = True
        """Whether it has gone on until it was fine enough for every fix, or has had all its pairs."""
        self.cut_short = False
        """Whether the newest look ended for lack of time, and not with the program."""
        self._most_pairs = most_pairs
        self._pairs: list[Pair] = []

    @property
    def resolution(self) -> float:
        """The share of a step below which nothing can be told from nothing; 0 while nobody has looked."""
        return self.latest.resolution if self.latest else 0.0

    def saw(self, found: Comparison, resolution: float) -> None:
        """A look that was to reach this resolution, without a failure; the pairs of coarser ones count too."""
        self._pairs = _joined(self._pairs, found.pairs)
        whole = found.generations >= LEAST_GENERATIONS
        self.fine = (whole and resolution <= LEAST_SAVING) or len(found.pairs) >= self._most_pairs
        self.cut_short = found.out_of_time
        if found.pairs:
            self.latest = _seen(self._pairs, found.step_ns, alternated=found.alternated)

    def wants_a_closer_look(self, found: Comparison) -> bool:
        """Whether the verdict on a trial hangs on a finer look that has not been taken."""
        ended = found.failed is None and not found.out_of_time
        return not self.fine and ended and _hangs_on(found.saving, self.latest)


def enough(promised: Sequence[float]) -> float:
    """The resolution that a first control is to reach, where fixes promise these shares of a step."""
    worth = [share for share in promised if share > LEAST_SAVING]
    if not worth:
        return LEAST_SAVING
    return max(LEAST_SAVING, FINE_BESIDE_LARGEST * max(worth), FINE_BESIDE_SMALLEST * min(worth))


def _seen(pairs: Sequence[Pair], step_ns: int, *, alternated: bool) -> AAControl | None:
    """What the pairs of a control say; None where they are too few."""
    if len(pairs) < LEAST_PAIRS:
        return None
    interval = estimate(pairs)
    generations = len({pair.generation for pair in pairs})
    # Two processes of one program were never seen to differ by as much as counts as a clear saving.
    luck = CLEAR_SAVING if generations < LEAST_GENERATIONS else 0.0
    return AAControl(interval, resolution(interval) + luck, len(pairs), generations, step_ns, alternated)


def _joined(before: Sequence[Pair], more: Sequence[Pair]) -> list[Pair]:
    """The pairs of two controls, whose processes were others."""
    first = 1 + max((pair.generation for pair in before), default=-1)
    return [*before, *(replace(pair, generation=first + pair.generation) for pair in more)]


def _hangs_on(saving: Interval | None, control: AAControl | None) -> bool:
    """Whether a finer control could let a fix pass."""
    if saving is None or control is None:
        return False
    return LEAST_SAVING < saving.low <= control.resolution
