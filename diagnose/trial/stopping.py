"""When the pairs of a duel say enough, so that more of them would only repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diagnose.verdict import CLEAR_SAVING, LEAST_SAVING, Pair, clear, hopeless, nothing_in_sight, precise


@dataclass(frozen=True)
class Stopping:
    """What is asked of the pairs at each of so many `looks`."""

    looks: int
    resolution: float | None
    """Of the machine; None while it is being measured."""
    enough: float
    """The resolution to reach, while it is being measured."""
    needed: float | None
    """What a saving must exceed, where a finer resolution may yet be measured."""
    reassures: bool = False
    """The saving was shown before."""

    def settled(self, pairs: Sequence[Pair]) -> bool:
        """Whether the answer is clear."""
        if self.resolution is None:
            return precise(pairs, self.looks, self.enough)
        return clear(pairs, self.resolution, self.looks, LEAST_SAVING if self.reassures else CLEAR_SAVING)

    def hopeless(self, pairs: Sequence[Pair]) -> bool:
        """Whether what is tried cannot be kept any more."""
        return self.resolution is not None and hopeless(pairs, self.resolution, self.looks, self.needed)

    def fruitless(self, pairs: Sequence[Pair]) -> bool:
        """Whether only other processes could still show a saving."""
        return self.resolution is not None and nothing_in_sight(pairs, self.resolution, self.looks, self.needed)
