"""The measurements of an A/B trial: pairs of blocks, starts, memory, and how it ended."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.model import Interval
from diagnose.trial.process.arm import ArmFailed, Block
from diagnose.trial.process.capacity import Memory
from diagnose.verdict import Pair, confidence_of_each, estimate

ORIGINAL, PATCHED = 0, 1
SIDES = 2
"""The arms of a trial: the original, and the patched program."""


class Ending(enum.Enum):
    """Why nothing more is measured. The first reason stands, but for an arm that fails after it in its window."""

    MEASURED = "as many pairs as were asked for, or as there can be"
    SURE = "one generation was enough: the saving is larger than processes of one program differ by"
    REASSURED = "one generation was enough to show again what was shown before"
    HOPELESS = "what is tried cannot be kept any more"
    SKIPPED = "the user left the trial before it was decided"
    OUT_OF_TIME = "the budget is used up"
    FAILED = "a side failed"


@dataclass
class Comparison:
    """The measurements of an A/B trial. Index 0 of a pair of values is the original, 1 the patched program."""

    pairs: list[Pair] = field(default_factory=list)
    generations: int = 0
    blocks: tuple[list[Block], list[Block]] = field(default_factory=lambda: ([], []))
    """The blocks that the pairs are made of."""
    steps: int = 0
    """Measured steps in a block."""
    looks: int = 1
    """How often a decision to keep could be taken: twice, where a first look left it open and more pairs followed."""
    held_steps: int = 0
    """Measured steps in a block, where fewer were seen not to hold what recurs every few steps; else 0."""
    step_ns: int = -1
    """Mean step of the original: of its first block while the trial goes on, in the end of all its blocks."""
    input_ns: tuple[float, float] | None = None
    """The time per step inside the loader's `__next__`."""
    peak_bytes: tuple[int, int] | None = None
    memory: Memory | None = None
    """The memory of the original after its warm-up."""
    starts_ns: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Per side, the time of each process from its start to the end of its warm-up."""
    traces: tuple[list[Path], list[Path]] = field(default_factory=lambda: ([], []))
    windows_taken: int = 0
    """How many of those the trial itself has taken."""
    windows_ns: int = 0
    """The time that it has spent on them."""
    ending: Ending | None = None
    """Why nothing more is measured; None while the trial goes on."""
    alternated: bool = False
    """The arms did not fit side by side: processes alternated instead of taking turns."""
    crowded: bool = False
    """Memory ran out while both arms lived."""
    ahead: bool = False
    """Two generations have started together."""
    apart: bool = False
    """Each arm has started once the one before it rested."""
    left: Sequence[str] = ()
    """The parts that a probe has left as they are in the patched program."""
    failed: tuple[int, ArmFailed] | None = None
    """The side that failed, and how; a program that came to its end is no failure."""
    ended_after: int | None = None
    """Steps of a program that came to its own end, where it said."""

    def end(self, ending: Ending) -> None:
        """Measure nothing more, for this reason, unless another was given before."""
        self.ending = self.ending or ending

    def fail(self, side: int, reason: ArmFailed) -> None:
        """A side failed: that counts even where the pairs were enough, as only its window was left."""
        self.failed, self.ending = (side, reason), Ending.FAILED

    def add(self, generation: int, blocks: Mapping[int, Block]) -> None:
        """Another pair: a block of each side."""
        for side in (ORIGINAL, PATCHED):
            self.blocks[side].append(blocks[side])
        self.pairs.append(Pair(generation, blocks[ORIGINAL].mean_ns, blocks[PATCHED].mean_ns))
        self.generations = len({pair.generation for pair in self.pairs})

    def begin_anew(self, steps: int) -> None:
        """Discard the pairs so far and start again with blocks of `steps` steps; shorter ones do not contain what
        recurs.
        """
        self.steps = self.held_steps = steps
        self.pairs.clear()
        self.blocks = ([], [])
        self.generations = 0
        self.ending = None

    @property
    def start_ns(self) -> int:
        """The longest way from the start of a process to the end of its warm-up; 0 where none got there."""
        return max((start for side in self.starts_ns for start in side), default=0)

    @property
    def saving(self) -> Interval | None:
        """The estimate over all pairs, as wide as so many looks at it ask for."""
        return estimate(self.pairs, confidence_of_each(self.looks)) if self.pairs else None

    def sum_up(self) -> None:
        """The figures that all measured blocks of the two give together."""
        original, patched = self.blocks
        if not original:
            return
        steps, others = (sum(block.steps for block in blocks) for blocks in (original, patched))
        self.step_ns = round(sum(block.total_ns for block in original) / steps)
        self.input_ns = (
            sum(block.input_ns for block in original) / steps,
            sum(block.input_ns for block in patched) / others,
        )
        peaks = [[block.memory.peak_bytes for block in blocks] for blocks in (original, patched)]
        known = [max((peak for peak in side if peak is not None), default=-1) for side in peaks]
        if min(known) >= 0:
            self.peak_bytes = (known[0], known[1])
