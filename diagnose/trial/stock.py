"""The stock of a resting arm's loader, and using it up before a block, so that it shows what the loader delivers.

A program that rests is stopped with its workers, but they have filled their queues while it waited for other programs
to start, and what they waited for (a disk, a network) comes while they are stopped. Training that is faster than its
workers takes that stock without waiting: a block of such steps would be far too fast. So where a loader may not keep
up, steps are dropped, a round of them at a time, until a round has left the stock as large as it was: then as much is
made as is taken. It is the controller that decides, since all ranks have to drop the same steps.

The other side is `diagnose.collect.inside.stock`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITS = 0.1
"""Of a block: to take a batch that is there, and unpack it, takes less."""
MOST_ROUNDS = 16
"""Rounds of dropped steps, after which a block begins whatever is left: workers almost keep up with such training."""
_TOLD_OVER = 2
"""So many rounds show whether a stock shrinks."""


@dataclass(frozen=True, slots=True)
class Stock:
    """Of one rank's loader, as training's step ended."""

    held: int
    """Batches that are made and not taken."""
    asked: int
    """Of these, with those that the workers are still to make."""
    workers: int
    most: int
    """Batches that the workers may be asked for at once."""

    @property
    def full(self) -> bool:
        """Whether all that was asked for is made: the workers have nothing to do."""
        return self.held >= self.asked

    def keeps_up(self, waited: float) -> bool:
        """Whether its workers do, where training waited for them for a share of a block of steps."""
        return self.full or (self.held >= self.workers and waited < WAITS)


Stocks = Sequence[Stock | None]
"""Of all ranks; None for one without a loader that has workers."""


def stocks_in(answers: Sequence[Mapping[str, Any]]) -> Stocks:
    """What the ranks say of theirs."""
    found = (answer.get("stock") for answer in answers)
    return [Stock(**one) if one is not None else None for one in found]


@dataclass
class UsingUp:
    """How the stock of one arm is used up before a block."""

    unsure: Sequence[bool]
    """Of each rank, whether its loader may not keep up."""
    workers: int = 0
    """Of such loaders, the most; a round has as many steps, so that each worker has its turn in it."""
    before: list[Stocks] = field(default_factory=list)
    """At the end of each round so far."""

    @classmethod
    def at_first(cls, warmed_up: Stocks) -> UsingUp:
        """After a warm-up: workers that had made all that they were asked for when a step ended keep up with training;
        of others it is not known, and what they had made before the first step may last longer than the warm-up."""
        return cls._of(warmed_up, [stock for stock in warmed_up if stock is not None and not stock.full])

    @classmethod
    def after(cls, block: Stocks, waited: float) -> UsingUp:
        """After a block, by what it has left and by the share of its time for which training waited for batches."""
        return cls._of(block, [stock for stock in block if stock is not None and not stock.keeps_up(waited)])

    @classmethod
    def _of(cls, stocks: Stocks, unsure: Sequence[Stock]) -> UsingUp:
        workers = max((stock.workers for stock in unsure), default=0)
        return cls([stock in unsure for stock in stocks], workers)

    @property
    def needed(self) -> bool:
        """Whether there may be anything to use up."""
        return any(self.unsure)

    def whole_turns(self, steps: int) -> int:
        """So many steps or more, in which each worker has its turn as often as any other.

        Workers that began together bring their batches together: fewer steps may fall between two waits.
        """
        return -(-steps // self.workers) * self.workers if self.workers else steps

    @property
    def ended(self) -> bool:
        """Whether the rounds so far were enough to tell."""
        return len(self.before) <= MOST_ROUNDS

    def goes_on(self, now: Stocks) -> bool:
        """Whether to drop another round of steps, after one that led to this stock.

        Batches of workers that began together come in waves: only over two rounds is it told whether a stock shrinks.
        """
        self.before.append(now)
        if len(self.before) > MOST_ROUNDS:
            return False
        earlier = self.before[-1 - _TOLD_OVER] if len(self.before) > _TOLD_OVER else [None] * len(now)
        return any(
            unsure and stock is not None and (other is None or stock.held < other.held)
            for unsure, other, stock in zip(self.unsure, earlier, now, strict=True)
        )
