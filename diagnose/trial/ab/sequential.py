"""When the pairs of a duel say enough, so that more of them would only repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.verdict import (
    CLEAR_SAVING,
    LEAST_PAIRS,
    LEAST_SAVING,
    SURE_SAVING,
    Pair,
    beyond,
    clear,
    estimate,
    floor,
    hopeless,
    nothing_in_sight,
    precise,
    sure,
)

_OF_PROMISE = 0.1  # of the predicted saving; chosen, not measured


def worth(promised: float) -> float:
    """Return the saving that a fix must be able to reach, as a share of a step, to earn more pairs where time is short:
    a tenth of the `promised` share, and at most half of a clear saving.
    """
    return min(_OF_PROMISE * promised, CLEAR_SAVING / 2)


@dataclass(frozen=True)
class SequentialStopping:
    """The stopping rule: which pairs are tested at each of so many `looks`."""

    looks: int
    resolution: float | None
    """The machine's resolution; None while it is being measured."""
    enough: float
    """The resolution to reach, while it is being measured."""
    needed: float | None
    """The least saving that counts, where a finer resolution may yet be measured."""
    reassures: bool = False
    """The saving was shown before."""
    worth: float = 0.0
    """The saving that a fix has to be able to reach, or it is left although it may yet show a little."""

    def settled(self, pairs: Sequence[Pair]) -> bool:
        """Whether the answer is clear."""
        if self.resolution is None:
            return precise(pairs, self.looks, self.enough)
        return clear(pairs, self.resolution, self.looks, LEAST_SAVING if self.reassures else CLEAR_SAVING)

    def sure(self, pairs: Sequence[Pair]) -> bool:
        """Whether the saving is so large that no other processes need to show it."""
        return self.resolution is not None and not self.reassures and sure(pairs, self.looks)

    def may_be_sure(self, pairs: Sequence[Pair]) -> bool:
        """Whether every pair so far shows a saving as large as that."""
        return self.resolution is not None and not self.reassures and beyond(pairs, SURE_SAVING)

    def hopeless(self, pairs: Sequence[Pair]) -> bool:
        """Whether what is tried cannot be kept any more."""
        return self.resolution is not None and (
            hopeless(pairs, self.resolution, self.looks, self.needed)
            or (self._open(pairs) and hopeless(pairs, self.resolution, self.looks, self.worth))
        )

    def fruitless(self, pairs: Sequence[Pair]) -> bool:
        """Whether only other processes could still show a saving."""
        return self.resolution is not None and (
            nothing_in_sight(pairs, self.resolution, self.looks, self.needed)
            or (self._open(pairs) and nothing_in_sight(pairs, self.resolution, self.looks, self.worth))
        )

    def undecided(self, pairs: Sequence[Pair]) -> bool:
        """Whether a fix seems to save enough by far, and its interval reaches down to what would not be kept."""
        if self.resolution is None or self.reassures or len(pairs) < LEAST_PAIRS:
            return False
        seen, least = estimate(pairs), floor(self.resolution)
        return seen.low <= (least if self.needed is None else self.needed) and seen.estimate > least

    def _open(self, pairs: Sequence[Pair]) -> bool:
        """Whether something has to be worth it, and no saving is shown that would be kept as it is."""
        return self.worth > 0 and len(pairs) >= LEAST_PAIRS and estimate(pairs).low <= floor(self.resolution or 0.0)
