"""Decides when steps are steady, so that the profiler sees what the program does and not how it starts.

Steps are not steady yet while training lives on batches that its loader's workers made before it began: once these are
used up, it may wait for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

BLOCK = 5
"""Steps whose median is compared with that of as many before; fewer where the warm-up is shorter than two blocks."""
TOLERANCE = 0.10
MOST_STEPS = 200
MOST_NS = 60_000_000_000
FEWEST_STEPS = 3
"""The fewest steps of measured length before the time limit may decide."""
STOCK_BLOCKS = 4
"""The number of blocks that show whether a loader's stock shrinks: batches of workers that began together come in
waves, of which fewer blocks may hold one more or less."""
WAITS = 0.1
"""The share of a block that taking a batch which is there stays below. A stock that shrinks by less than this of
what is taken lets training wait for no larger a share."""


@dataclass
class Steadiness:
    """Fed with the ends of steps on the training thread; `reason` says why the wait is over, in words."""

    warmup: int
    most_steps: int = MOST_STEPS
    most_ns: int = MOST_NS
    input_ns: Callable[[], int] = lambda: 0
    """Nanoseconds so far for which training waited for its loader."""
    stock: Callable[[], Mapping[str, int] | None] = lambda: None
    """See `hooks.loader_stock`."""
    reason: str | None = None
    step_ns: int | None = None
    """Median step of the last two blocks when the decision fell."""
    _ends: list[int] = field(default_factory=list)
    _compiled_ns: int = 0
    _stocks: list[tuple[int, int]] = field(default_factory=list)
    """The batches in stock and the time waited so far, at the end of each block."""

    @property
    def block(self) -> int:
        """Steps in a block."""
        return max(1, min(BLOCK, (self.warmup - 1) // 2))

    def compiled(self, end_ns: int) -> None:
        """Something was compiled until `end_ns`."""
        self._compiled_ns = end_ns

    def step_ended(self, end_ns: int) -> bool:
        """Whether the steps are steady (or the wait has lasted long enough)."""
        ends = self._ends
        ends.append(end_ns)
        measured = len(ends) - 1
        waited = end_ns - ends[0]
        if measured >= FEWEST_STEPS and waited > self.most_ns:
            return self.decide(f"not decided within {waited / 1e9:.0f} s ({measured} steps): traced as it was")
        block = self.block
        first = max(self.warmup, 2 * block + 1)
        if (len(ends) - first) % block:
            return False
        on_stock = self._lives_on_stock()
        if len(ends) < first:
            return False
        before, last = _median_step(ends[-2 * block - 1 : -block]), _median_step(ends[-block - 1 :])
        change = abs(last - before) / max(1, before)
        blocks = f"medians of the last two blocks of {block} steps: {before / 1e6:.4g} ms and {last / 1e6:.4g} ms"
        compiling = self._compiled_ns > ends[-2 * block - 1]
        if change <= TOLERANCE and not compiling and not on_stock:
            return self.decide(f"steady after {len(ends)} steps ({blocks}; nothing compiled meanwhile)")
        if measured >= self.most_steps:
            why = f"{100 * change:.0f} % apart"
            if compiling or on_stock:
                why = "still compiling" if compiling else "the loader's stock still shrinks"
            return self.decide(f"not steady after {len(ends)} steps ({blocks}; {why}): traced as it was")
        return False

    def _lives_on_stock(self) -> bool:
        """Whether training takes more batches than its loader's workers make, and does not wait for them yet."""
        stock, waited_ns = self.stock(), self.input_ns()
        if stock is None:
            self._stocks.clear()
            return False
        held = stock["held"]
        self._stocks.append((held, waited_ns))
        if stock["asked"] - held < stock["workers"]:
            return False  # a worker has nothing to make
        if held < stock["workers"] and len(self._stocks) > 1:
            block_ns = self._ends[-1] - self._ends[-1 - self.block]
            if waited_ns - self._stocks[-2][1] >= WAITS * block_ns:
                return False
        if len(self._stocks) <= STOCK_BLOCKS:
            return True
        return self._stocks[-1 - STOCK_BLOCKS][0] - held > WAITS * STOCK_BLOCKS * self.block

    def so_far(self, found_by: str) -> str:
        """Return the sentence to print where the program ended before steps were steady."""
        count = len(self._ends)
        unit = {"backward": "backward passes", "batches": "batches"}.get(found_by, "steps")
        return f"the program ended after {count} {unit}, before they could be called steady: not traced"

    def median_ns(self) -> int | None:
        """Median of the last two blocks so far; None with fewer than two ends."""
        return _median_step(self._ends[-2 * self.block - 1 :]) if len(self._ends) > 1 else None

    def decide(self, reason: str) -> bool:
        """End the wait for this reason; True."""
        self.reason = reason
        self.step_ns = self.median_ns()
        return True


def _median_step(ends: list[int]) -> int:
    """Low median of the differences."""
    lengths = sorted(later - earlier for earlier, later in pairwise(ends))
    return lengths[(len(lengths) - 1) // 2]
