"""Finds work that recurs every few steps, and the block length that contains it. Pure.

A new length that is compiled, a checkpoint, a collection of garbage: one step of many takes far longer. A block that is
over before it comes has none of it, and the next block all of it, so that pairs of such blocks say nothing however many
there are. Blocks in which it comes several times are alike again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median_low

from diagnose.trial.process.arm import Block

UNLIKE = 2.0
"""The multiple of the mean step of another block of the same program that is more than clocks and neighbours do."""
FAR_LONGER = 3.0
"""The multiple of the median step from which on a step is far longer."""
SEEN_IN = 2
"""Blocks that have such a step. What comes only once was a mishap."""
TIMES = 3
"""How often it is to come in a block."""
MOST_TRACED = 50
"""Steps of a profiler window that is to see it: a file of more takes long to write and to read."""
LONGER = 1.5
"""The multiple of a block's steps below which a longer block is not worth beginning anew for."""


@dataclass
class SeenBlocks:
    """Blocks of one program."""

    blocks: list[Block] = field(default_factory=list)

    def longer_than(self, steps: int, longest_ns: int) -> int:
        """Steps of a block that holds what recurs in these and lasts no longer than that, where they are well more than
        `steps`, and these are forgotten; else 0."""
        wanted = steps_to_hold(self.blocks, longest_ns)
        if wanted < LONGER * steps:
            return 0
        self.blocks.clear()
        return wanted


def steps_to_hold(blocks: Sequence[Block], longest_ns: int) -> int:
    """Steps of a block in which what recurs in these blocks of one program comes several times, as far as such a block
    is not longer than `longest_ns`; 0 where these blocks are alike already, or nothing recurs in them.

    A host that runs ahead of its device waits for it now and then, in one step for many: blocks are timed until the
    device is idle, so those are alike. As the last step of each has that wait at least, it is held against other last
    ones.
    """
    means_ns = [block.mean_ns for block in blocks]
    if not means_ns or max(means_ns) <= UNLIKE * min(means_ns):
        return 0
    steps_ns = list(chain.from_iterable(block.steps_ns for block in blocks))
    inner, last = [block.steps_ns[:-1] for block in blocks], [block.steps_ns[-1:] for block in blocks]
    in_blocks = [sum(counts) for counts in zip(_far_longer(inner), _far_longer(last), strict=True)]
    if sum(found > 0 for found in in_blocks) < SEEN_IN:
        return 0
    most = round(longest_ns * len(steps_ns) / sum(steps_ns))
    return min(most, math.ceil(TIMES * len(steps_ns) / sum(in_blocks)))


def _far_longer(in_blocks: Sequence[Sequence[int]]) -> list[int]:
    """Return how many of some steps of each block take far longer than is usual for those."""
    far_longer_ns = FAR_LONGER * median_low(list(chain.from_iterable(in_blocks)) or [0])
    return [sum(step_ns > far_longer_ns for step_ns in steps_ns) for steps_ns in in_blocks]


def steps_to_see(held: int) -> int:
    """Steps of a profiler window in which what recurs is to come twice, by those of a block that holds it, so that it
    comes once where they were counted too often; 0 where nothing recurs."""
    return min(MOST_TRACED, 2 * held // TIMES) if held else 0
