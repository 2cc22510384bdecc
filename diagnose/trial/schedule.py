"""How long and how often the arms of a trial take turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from diagnose.units import NS_PER_MS, NS_PER_S

_BLOCKS = 3
"""A block of slow steps may last this many times `block_ns`, before it takes fewer steps."""
_RECURRING_BLOCKS = 20
"""How many times `block_ns` a block may last that is to hold what recurs every few steps."""
_FEWEST_STEPS = 2
"""One alone, from one end of the device's work to another, would show all of the host's that goes on beside others."""
LONG_STEP_NS = NS_PER_S
"""Beside a step that takes this long the noise of clocks, caches and neighbours is small: what pairs of shorter steps
say together, half as many pairs of these say. What differs between processes, only more processes tell."""
LONG_WARM_UP_STEPS = 3
"""Warm-up steps where steps are long: memory and choices of kernels have settled after two, and clocks after
seconds."""
EARLY_TIMES = 1.5
"""A process that starts early may take this many times as long as what starts beside it, and `EARLY_MORE_NS`."""
EARLY_MORE_NS = 2 * NS_PER_S  # see EARLY_TIMES; chosen, not measured


CLEARING_NS = 2 * NS_PER_S
"""The time for clearing away once the time is up: a budget is exceeded by no more than 5 s, and a report follows."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sizes and limits of a trial. Times are nanoseconds; a pair is one block of each arm."""

    pairs: int = 20
    generations: int = 2
    """Each with fresh processes, started in swapped order."""
    alternating_pairs: int = 2
    """Pairs of a generation whose processes run one after the other, as two do not fit on the device: starts take
    most of the time then. The fewest pairs of a trial are still two generations."""
    warmup_steps: int = 5
    drop_steps: int = 2
    """Unmeasured steps at the head of each block: caches, clocks and prefetch queues recover from the rest. Of steps
    that outlast such a recovery by themselves, one."""
    block_ns: int = 300 * NS_PER_MS
    least_steps: int = 5
    """Fewer of steps of which so many outlast three blocks: the noise of a clock is nothing beside one of those."""
    usual_steps: int = 10
    most_steps: int = 1000
    screen_pairs: int = 4
    """The number of pairs before the first look at whether the trial is hopeless: most fixes that lose end here."""
    look_every: int = 6
    """Pairs between the later looks; the first of them is at the end of the first generation."""
    sure_every: int = 3
    """Pairs of the first generation between looks at whether its saving is beyond all luck."""
    sweep_pairs: int = 4
    """Pairs for each setting of a knob, before the full trial of the chosen one."""
    trace_steps: int = 4
    start_limit_ns: int = 600 * NS_PER_S
    """The time limit from the start of a process to the end of its warm-up."""
    stall_limit_ns: int = 60 * NS_PER_S
    """A block may take this much longer than ten times what it should."""
    extra_generations: int = 4
    """May be started when programs end before there are enough pairs."""
    final_runs: int = 2
    """Runs of the original and of the patched program alone, at the end."""

    @classmethod
    def quick(cls) -> Schedule:
        """Short enough for a demonstration: seconds, not minutes; it resolves less."""
        return cls(
            pairs=8,
            warmup_steps=3,
            drop_steps=1,
            block_ns=200 * NS_PER_MS,
            least_steps=3,
            usual_steps=3,
            look_every=4,
            sweep_pairs=2,
            final_runs=1,
        )

    @property
    def pairs_per_generation(self) -> int:
        """How many pairs a generation is asked for."""
        return math.ceil(self.pairs / self.generations)

    @property
    def looks(self) -> int:
        """How often a trial is looked at, the end included."""
        return 1 + sum(self.looks_after(pairs) for pairs in range(1, self.pairs))

    def longest_ns(self, left_ns: int | None = None) -> int:
        """Return how long a block may last that is to hold what recurs every few steps. Of the time left, the pairs of
        a first look at all generations are to take no more than half."""
        longest_ns = _RECURRING_BLOCKS * self.block_ns
        if left_ns is None:
            return longest_ns
        return min(longest_ns, left_ns // (2 * 2 * self.screen_pairs * self.generations))

    def looks_after(self, pairs: int) -> bool:
        """Whether to ask, after so many pairs, if the trial is hopeless. At its end it is judged instead."""
        if pairs >= self.pairs:
            return False
        return pairs >= self.screen_pairs and (pairs - self.screen_pairs) % self.look_every == 0

    def block_steps(self, step_ns: int) -> int:
        """Measured steps in a block of a program whose step takes `step_ns`."""
        if step_ns <= 0:
            return self.usual_steps
        enough = math.ceil(self.block_ns / step_ns)
        room = _BLOCKS * self.block_ns // step_ns
        wanted = max((steps for steps in (self.least_steps, self.usual_steps) if steps <= room), default=_FEWEST_STEPS)
        return min(self.most_steps, max(min(self.least_steps, _FEWEST_STEPS), enough, wanted))

    def screened_pairs(self, step_ns: int) -> int:
        """Pairs of a generation after which it is asked whether more are needed."""
        return math.ceil(self.screen_pairs / 2) if step_ns >= LONG_STEP_NS else self.screen_pairs

    def warm_up(self, step_ns: int) -> int:
        """Steps of a warm-up, where a step takes so long."""
        return min(LONG_WARM_UP_STEPS, self.warmup_steps) if step_ns >= LONG_STEP_NS else self.warmup_steps

    def drops(self, step_ns: int) -> int:
        """Unmeasured steps at the head of a block of a program whose step takes `step_ns`."""
        return min(1, self.drop_steps) if self.drop_steps * step_ns > self.block_ns else self.drop_steps

    def block_limit_ns(self, steps: int, step_ns: int) -> int:
        """Return how long a block of `steps` may take before the arm counts as hanging."""
        return self.stall_limit_ns + 10 * (steps + self.drops(step_ns)) * max(step_ns, 0)

    def next_start_limit_ns(self, start_ns: int) -> int:
        """Return how long a start may take once others took `start_ns`."""
        return min(self.start_limit_ns, self.stall_limit_ns + 10 * start_ns) if start_ns else self.start_limit_ns

    def again(self) -> Schedule:
        """Return the schedule with as many pairs again, of as many generations."""
        return replace(self, pairs=2 * self.pairs, generations=2 * self.generations)

    def sweep(self) -> Schedule:
        """The short form for one setting of a knob."""
        return replace(self, pairs=self.sweep_pairs, generations=1, extra_generations=0)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment after which nothing new is begun; None: never."""

    at_ns: int | None = None
    clock: Callable[[], int] = field(default=time.monotonic_ns, repr=False)

    @classmethod
    def within(cls, budget_ns: int | None, clock: Callable[[], int] = time.monotonic_ns) -> Deadline:
        """The deadline of a budget that starts now."""
        return cls(None if budget_ns is None else clock() + budget_ns, clock)

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self.at_ns is not None and self.clock() >= self.at_ns

    @property
    def left_ns(self) -> int | None:
        """The time until then, never below zero; None: no end."""
        return None if self.at_ns is None else max(0, self.at_ns - self.clock())

    @property
    def closing_ns(self) -> int | None:
        """The time that clearing away may take; None: no end."""
        return None if self.at_ns is None else (self.left_ns or 0) + CLEARING_NS

    def earlier(self, by_ns: int) -> Deadline:
        """The deadline of a part that must leave `by_ns` to what comes after it."""
        return self if self.at_ns is None else replace(self, at_ns=self.at_ns - by_ns)

    def part(self, of: int) -> Deadline:
        """The end of the first of so many equal parts of the time left."""
        return self if self.at_ns is None else replace(self, at_ns=self.clock() + (self.left_ns or 0) // max(1, of))

    def half_ns(self, limit_ns: int) -> int:
        """The shorter of a limit and half of the time left (a second at least): nothing that hangs takes it all."""
        if self.at_ns is None:
            return limit_ns
        return max(NS_PER_S, min(limit_ns, (self.at_ns - self.clock()) // 2))

    def limit_ns(self, limit_ns: int) -> int:
        """The shorter of a limit and the time left (a second at least, so that an arm can still be ended)."""
        if self.at_ns is None:
            return limit_ns
        return max(NS_PER_S, min(limit_ns, self.at_ns - self.clock()))
