"""The cheapest choice of blocks to compute again with which a step stays within a budget.

What must be saved by then is known for each block (`Chain`): a knapsack to be filled, with a least filling at every
block on the way. Choices are built block by block; one that saves no more than another, and takes as long, is left out
(the Pareto frontier). Blocks that are alike leave few choices, and the plan is the best there is. Should there be more
than MOST choices, some between are left out: the plan fits, and may cost a little more.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from diagnose.memory.chain import Block, Chain

MOST = 1024
"""Choices that are kept on the way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Blocks to compute again."""

    again: tuple[int, ...]
    """The numbers of the blocks that are computed again, rising; empty where everything fits as it is."""
    peak_bytes: int
    """The most that a step will hold."""
    recompute_ns: int
    """The time that it costs per forward pass."""


@dataclass(frozen=True, slots=True)
class _Choice:
    saved_bytes: int = 0
    saved_forward_bytes: int = 0
    cost_ns: int = 0
    chosen: int = 0
    """A bit for each block that is computed again."""

    def beside(self, number: int, block: Block) -> _Choice:
        return _Choice(
            self.saved_bytes + block.saved_bytes,
            self.saved_forward_bytes + block.saved_forward_bytes,
            self.cost_ns + block.recompute_ns,
            self.chosen | 1 << number,
        )

    def fits(self, forward_bytes: int, backward_bytes: int, budget_bytes: int) -> bool:
        fits_forward = forward_bytes - self.saved_forward_bytes <= budget_bytes
        return fits_forward and backward_bytes - self.saved_bytes <= budget_bytes


def cheapest_plan(chain: Chain, budget_bytes: int) -> Plan | None:
    """The plan with the least recomputation within the budget; None where none fits.

    Among plans that cost the same, the one with the earlier blocks: it needs the least room at their backward passes.
    """
    frontier = [_Choice()] if chain.rest_peak_bytes <= budget_bytes else []
    for number, block in enumerate(chain.blocks):
        found = [one for one in frontier if one.fits(block.forward_peak_bytes, block.backward_peak_bytes, budget_bytes)]
        most = max(block.backward_peak_bytes, block.again_peak_bytes)
        found += [one.beside(number, block) for one in frontier if one.fits(0, most, budget_bytes)]
        frontier = _thin(_pareto_front(found))
    enough = [one for one in frontier if one.fits(chain.turn_peak_bytes, chain.back_peak_bytes, budget_bytes)]
    if not enough:
        return None
    best = min(enough, key=lambda one: (one.cost_ns, one.chosen))
    return _plan(chain, tuple(number for number in range(len(chain.blocks)) if best.chosen >> number & 1))


def leanest_plan(chain: Chain) -> Plan:
    """The plan that holds least, whatever it costs; of several, the cheapest."""
    everything = _plan(chain, tuple(range(len(chain.blocks))))
    return cheapest_plan(chain, everything.peak_bytes) or everything


def _pareto_front(choices: list[_Choice]) -> list[_Choice]:
    """Keep the choices on the Pareto front of bytes saved against time, the cheapest first."""
    kept: list[_Choice] = []
    saved: list[int] = []  # rising, of those kept that save most in one way or the other
    saved_forward: list[int] = []  # falling
    for one in sorted(choices, key=lambda one: (one.cost_ns, -one.saved_bytes, -one.saved_forward_bytes, one.chosen)):
        at = bisect_left(saved, one.saved_bytes)
        if at < len(saved) and saved_forward[at] >= one.saved_forward_bytes:
            continue
        kept.append(one)
        end = at + 1 if at < len(saved) and saved[at] == one.saved_bytes else at
        while at and saved_forward[at - 1] <= one.saved_forward_bytes:
            at -= 1
        saved[at:end], saved_forward[at:end] = [one.saved_bytes], [one.saved_forward_bytes]
    return kept


def _thin(choices: list[_Choice]) -> list[_Choice]:
    """Return at most MOST choices, evenly spread over what they cost; the one that saves most always stays."""
    if len(choices) <= MOST:
        return choices
    places = {round(at * (len(choices) - 1) / (MOST - 2)) for at in range(MOST - 1)}
    most = max(choices, key=lambda one: (one.saved_forward_bytes, one.saved_bytes))
    return [one for at, one in enumerate(choices) if at in places or one is most]


def _plan(chain: Chain, again: tuple[int, ...]) -> Plan:
    return Plan(again, chain.peak_bytes(again), chain.recompute_ns(again))
