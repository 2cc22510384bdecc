"""The stock of a resting arm's loader, and using it up before a block, so that it shows what the loader delivers.

A program that rests is stopped with its workers, but they have filled their queues while it waited for other programs
to start, and what they waited for (a disk, a network) comes while they are stopped. Training that is faster than its
workers takes that stock without waiting: a block of such steps would be far too fast. So where a loader may not keep
up, steps are dropped, a round of them at a time, until the stock is about as large as it was: then as much is made as
is taken. It is the controller that decides, since all ranks have to drop the same steps.

The other side is `diagnose.collect.inside.hooks.loader_stock`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITS = 0.1
"""The share of a block that taking a batch which is there, and unpacking it, stays below. A stock that shrinks by
less than this of what is taken lets training wait for no larger a share."""
_LONGEST_TAKE = 0.3
"""The longest share of a block for taking batches that are there: a longer wait is for one of them that comes late
in its turn."""
MOST_ROUNDS = 16
"""Rounds of dropped steps, after which a block begins whatever is left: workers almost keep up with such training."""
_LEAST_ROUND = 4
"""Steps: whether a stock of a few batches shrinks is not told from fewer."""
_TOLD_OVER = 2
"""The number of rounds that show whether a stock shrinks."""


@dataclass(frozen=True, slots=True)
class LoaderStock:
    """The stock of one rank's loader when training's step ended."""

    held: int
    """Batches that are made and not taken."""
    asked: int
    """The batches asked for, with those that the workers are still to make."""
    workers: int
    most: int
    """Batches that the workers may be asked for at once."""

    @property
    def full(self) -> bool:
        """Whether all that may be asked for at once is made. Towards the end of a pass less is asked for: that it is
        made says nothing of whether workers keep up."""
        return self.held >= self.asked >= self.most

    @property
    def has_idle_workers(self) -> bool:
        """Whether a worker has nothing to make."""
        return self.asked - self.held < self.workers

    @property
    def is_low(self) -> bool:
        """Whether less is there than the workers bring together."""
        return self.held < self.workers


Stocks = Sequence[LoaderStock | None]
"""Per rank its loader's stock; None for one without a loader that has workers."""


def stocks_in(answers: Sequence[Mapping[str, Any]]) -> Stocks:
    """Return the loader stocks that the ranks report."""
    found = (answer.get("stock") for answer in answers)
    return [LoaderStock(**one) if one is not None else None for one in found]


@dataclass
class LoaderDrain:
    """How the stock of one arm is used up before a block."""

    unsure: Sequence[bool]
    """Per rank, whether its loader may not keep up."""
    workers: int = 0
    """The largest number of workers of such loaders."""
    rounds: list[tuple[Stocks, float]] = field(default_factory=list)
    """The stock at the end of each so far, and the share of its time for which training waited for batches."""
    shrinks: bool = True
    """Whether the stock does, as far as the rounds have told."""
    measured: int = 0
    """Steps of blocks since nothing has to be used up."""
    waited: float = 0.0
    """How many steps' time training waited for them."""

    @classmethod
    def of(cls, stocks: Stocks) -> LoaderDrain:
        """Return the drain after steps that left these stocks. Workers that had made all they were asked for when a
        step ended keep up with training; of others it is not known, and what they had made before may last longer than
        those steps.
        """
        unsure = [stock for stock in stocks if stock is not None and not stock.full]
        return cls([stock in unsure for stock in stocks], max((stock.workers for stock in unsure), default=0))

    @property
    def needed(self) -> bool:
        """Whether there may be anything to use up."""
        return any(self.unsure)

    @property
    def round_steps(self) -> int:
        """Steps of a round, in which each worker has its turn."""
        return self.whole_turns(_LEAST_ROUND)

    def whole_turns(self, steps: int) -> int:
        """So many steps or more, in which each worker has its turn as often as any other.

        Workers that began together bring their batches together: fewer steps may fall between two waits.
        """
        return -(-steps // self.workers) * self.workers if self.workers else steps

    def goes_on(self, now: Stocks, waited: float) -> bool:
        """Whether to drop another round of steps, after one that led to this stock.

        Batches of workers that began together come in waves: only over two rounds is it told whether a stock shrinks.
        """
        self.rounds.append((now, waited))
        if len(self.rounds) > MOST_ROUNDS or self._is_used_up(now, waited):
            return False
        if len(self.rounds) > _TOLD_OVER:
            earlier, _ = self.rounds[-1 - _TOLD_OVER]
            as_good_as_none = WAITS * _TOLD_OVER * self.round_steps
            self.shrinks = any(
                before is not None and stock is not None and before.held - stock.held > as_good_as_none
                for before, stock in zip(self._unsure(earlier), self._unsure(now), strict=True)
            )
        return self.needed and self.shrinks

    def _unsure(self, stocks: Stocks) -> list[LoaderStock | None]:
        """Return the stocks of the loaders among them that may not keep up."""
        return [stock for unsure, stock in zip(self.unsure, stocks, strict=True) if unsure]

    def _is_used_up(self, now: Stocks, waited: float) -> bool:
        """Whether training waits, with less in stock than its workers bring together."""
        return waited >= WAITS and all(stock is None or stock.is_low for stock in self._unsure(now))

    def then(self) -> LoaderDrain:
        """Return the drain to do before the next block, once this one is done: none where the rounds were enough to
        tell that workers have finished what they were asked for, and training does not wait.
        """
        lately = self.rounds[-_TOLD_OVER:]
        stocks = [stock for now, _ in lately for stock in self._unsure(now)]
        done = all(stock is not None and stock.has_idle_workers for stock in stocks)
        keeps_up = done and not self.shrinks and not any(_waits(now, waited) for now, waited in lately)
        return LoaderDrain(()) if keeps_up else LoaderDrain(self.unsure, self.workers)

    def after(self, steps: int, now: Stocks, waited: float) -> LoaderDrain:
        """Return the drain to do after a block of `steps`: where training waits by then, over enough steps for each
        worker to have had its turn, there may be something to use up after all.
        """
        if self.needed:
            return self
        self.measured += steps
        self.waited += waited * steps
        again = LoaderDrain.of(now)
        waits = self.waited >= WAITS * self.measured and self.measured >= again.round_steps
        return again if again.needed and waits else self


def _waits(now: Stocks, waited: float) -> bool:
    """Whether training waits for workers: to take a batch that is there may take a while, too, where cores are few."""
    short = any(stock is not None and (stock.is_low or not stock.has_idle_workers) for stock in now)
    return waited >= (WAITS if short else _LONGEST_TAKE)
