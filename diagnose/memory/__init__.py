"""Plans for the memory of a training step: which blocks to compute again in the backward pass, under a budget.

    known = read_blocks(sites)                        # what each block keeps and costs, and the peaks around them
    plan = cheapest_plan(known.chain, budget_bytes)   # the blocks to compute again, or None where no choice fits
    plan.peak_bytes, plan.recompute_ns                # what a step will hold at most, and what that costs

Integers in, integers out: bytes and nanoseconds. Nothing here knows torch, a trace or a source.
"""

from __future__ import annotations

from diagnose.memory.chain import Block, Chain
from diagnose.memory.planner import Plan, cheapest_plan, leanest_plan
from diagnose.memory.proposals import lighter_plans, plans, read_plan, state_shares, written_plan
from diagnose.memory.recorded_blocks import Line, RecordedBlocks, read_blocks

__all__ = [
    "Block",
    "Chain",
    "Line",
    "Plan",
    "RecordedBlocks",
    "cheapest_plan",
    "leanest_plan",
    "lighter_plans",
    "plans",
    "read_blocks",
    "read_plan",
    "state_shares",
    "written_plan",
]
