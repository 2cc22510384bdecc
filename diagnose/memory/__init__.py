"""Plans for the memory of a training step: which blocks to compute again in the backward pass, under a budget.

    known = recorded(sites)                     # what each block keeps and costs, and the peaks around them
    plan = cheapest(known.chain, budget_bytes)  # the blocks to compute again, or None where no choice fits
    plan.peak_bytes, plan.recompute_ns          # what a step will hold at most, and what that costs

Integers in, integers out: bytes and nanoseconds. Nothing here knows torch, a trace or a source.
"""

from __future__ import annotations

from diagnose.memory.chain import Block, Chain, Split
from diagnose.memory.planner import Plan, cheapest, cheapest_split, leanest
from diagnose.memory.proposals import plans, read_plan, relaxed, split_plans, state_shares, written_plan
from diagnose.memory.recorded import Line, Recorded, recorded

__all__ = [
    "Block",
    "Chain",
    "Line",
    "Plan",
    "Recorded",
    "Split",
    "cheapest",
    "cheapest_split",
    "leanest",
    "plans",
    "read_plan",
    "recorded",
    "relaxed",
    "split_plans",
    "state_shares",
    "written_plan",
]
