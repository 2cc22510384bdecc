"""A model's blocks in the order in which they run, with what the allocator held as they did.

In the forward pass every block adds what autograd keeps of it, and its output. In the backward pass the last block goes
first, and what it kept goes with it. A block that is computed again keeps nothing but its output, which the next block
keeps anyway; right before its own backward pass it takes what it would have kept. So for every block that is computed
again, all that is held from its forward pass to its backward pass is less by what it would have kept, and nothing
else changes:

    in the forward pass of block j      less by what all blocks before j save
    between forward and backward        less by what all blocks save
    in the backward pass of block j     less by what all blocks before j save

Copies of weights that autocast makes are among what is kept, and stay to the end of the forward pass in any case. What
its own forward pass takes for a while comes again with the second one, beside the gradients that are there by then
(`again_peak_bytes`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a chain."""

    kept_bytes: int
    """The memory that stays after its forward pass until its backward pass, its output included."""
    boundary_bytes: int
    """Bytes of the block's output, which stays in any case."""
    recompute_ns: int
    """The time of its forward pass once more."""
    forward_peak_bytes: int = 0
    """The most that the whole process held during its forward pass."""
    backward_peak_bytes: int = 0
    """The most that the whole process held during its backward pass."""
    cast_bytes: int = 0
    """Copies of its weights in the format of autocast."""
    again_peak_bytes: int = 0
    """The most that the whole process held while the block ran a second time, if it did so alone."""

    @property
    def saved_bytes(self) -> int:
        """The bytes that need not be held in the backward pass where the block is computed again."""
        return max(0, self.kept_bytes - self.boundary_bytes)

    @property
    def saved_forward_bytes(self) -> int:
        """The bytes that need not be held in the forward pass."""
        return max(0, self.saved_bytes - self.cast_bytes)


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks in the order of the forward pass, none of them computed again in the figures."""

    blocks: tuple[Block, ...]
    turn_peak_bytes: int
    """The most that was held after the last block's forward pass, before the backward pass: the loss, the logits."""
    rest_peak_bytes: int = 0
    """The most that was held when nothing of the blocks was: the step of the optimizer."""
    back_peak_bytes: int = 0
    """The most that was held in the backward pass before that of the last block: the gradients of the logits."""

    def peak_bytes(self, again: Collection[int] = ()) -> int:
        """The most that is held in a step in which the blocks of these numbers are computed again."""
        peak, saved, saved_forward = self.rest_peak_bytes, 0, 0
        for number, block in enumerate(self.blocks):
            peak = max(peak, block.backward_peak_bytes - saved)
            if number in again:
                peak = max(peak, block.again_peak_bytes - saved)
                saved += block.saved_bytes
                saved_forward += block.saved_forward_bytes
            else:
                peak = max(peak, block.forward_peak_bytes - saved_forward)
        return max(peak, self.turn_peak_bytes - saved_forward, self.back_peak_bytes - saved)

    def recompute_ns(self, again: Collection[int]) -> int:
        """Return the time to compute these blocks again, in ns."""
        return sum(self.blocks[number].recompute_ns for number in again)
