"""A/A control: the original measured against itself, taken where a verdict depends on the machine's resolution.

Most fixes need no such control: what saves a tenth of a step for certain saves more than two processes of one program
were ever seen to differ by, and what saves nothing saves less than is worth a line. Until one is taken, the resolution
is assumed to be that difference. A saving that is enough by itself, and only not beyond the resolution, asks for a
control, as fine as that saving needs, and finer again for a smaller one; all pairs of all looks count. The trial itself
is over by then, and not one pair is added to it. That is a second look nevertheless, and taken only where it can let a
fix pass: how rarely a patch that changes nothing is kept so, tests simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnose.trial.ab.result import Comparison, Ending
from diagnose.verdict import CLEAR_SAVING, LEAST_GENERATIONS, LEAST_PAIRS, LEAST_SAVING, Pair, estimate, resolution

ASSUMED = CLEAR_SAVING
"""Two processes of one program were never seen to differ by as much."""
MOST_OF_BUDGET = 3
"""The divisor of the time that is left: where another generation would take more than one part in so many, a control
has to do with the one that there is."""
_SETTLED = frozenset({Ending.SURE, Ending.FAILED, Ending.OUT_OF_TIME})
"""A trial that ended so is not decided by the resolution."""


@dataclass(frozen=True)
class AAControl:
    """The original against itself, with the schedule of the trials."""

    resolution: float
    pairs: int
    generations: int
    step_ns: int


class AAControls:
    """The results of a session's A/A controls."""

    def __init__(self, most_pairs: int) -> None:
        """`most_pairs` of one look."""
        self._most_pairs = most_pairs
        self.latest: AAControl | None = None
        self.exhausted = False
        """Whether a look had all its pairs: none is finer."""
        self._pairs: list[Pair] = []

    @property
    def resolution(self) -> float:
        """The share of a step below which nothing can be told from nothing; assumed while nobody has looked."""
        return self.latest.resolution if self.latest else ASSUMED

    def saw(self, found: Comparison) -> None:
        """Learn from a look without a failure; the pairs of coarser ones count too."""
        self._pairs = _joined(self._pairs, found.pairs)
        self.exhausted = len(found.pairs) >= self._most_pairs
        self.latest = _control_of(self._pairs, found.step_ns) or self.latest

    def wants_a_look(self, found: Comparison) -> bool:
        """Whether the verdict on a trial hangs on a finer look."""
        if self.exhausted or found.saving is None or found.ending in _SETTLED:
            return False
        return LEAST_SAVING < found.saving.low <= self.resolution


def _control_of(pairs: Sequence[Pair], step_ns: int) -> AAControl | None:
    """Return what the pairs of a control say; None where they are too few."""
    if len(pairs) < LEAST_PAIRS:
        return None
    generations = len({pair.generation for pair in pairs})
    luck = ASSUMED if generations < LEAST_GENERATIONS else 0.0
    return AAControl(resolution(estimate(pairs)) + luck, len(pairs), generations, step_ns)


def _joined(before: Sequence[Pair], more: Sequence[Pair]) -> list[Pair]:
    """The pairs of two controls, whose processes were others."""
    first = 1 + max((pair.generation for pair in before), default=-1)
    return [*before, *(replace(pair, generation=first + pair.generation) for pair in more)]
