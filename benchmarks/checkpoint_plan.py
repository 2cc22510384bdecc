"""Compares planned checkpointing on a transformer under caps of 60, 40 and 25 % of its uncheckpointed peak.

    python benchmarks/checkpoint_plan.py --out OUT [--seconds 200] [--device cuda|cpu] [--tiny]

The probe that watches a run measures the blocks in four steps; from that a plan is made for each cap, with the peak
that it will have. A cap is one on what the allocator takes of the device, so that what it could not give back is no
room.

They are held against the best choice of blocks that fits. There are 2 to the power of n of those, and few need a clock:

- *Which* blocks, of equal ones, does not matter to the time, and to the peak the first are best: when a block runs
  again, those after it have given back what they kept, those before it have not. So there is one choice for each k, the
  first k; that evenly spread ones are no better is measured beside it for each plan.
- Each block more takes one forward pass more. So of all k that fit, the smallest is the fastest, and the one after it
  shows by how much. Which k fit is measured for all of them, in a step each.

These few have their turns with the plans, with the program as it is and with all blocks computed again: a turn for
each in rounds there and back until the time ends, so that what slows the machine for a while meets them all. What a
plan is behind another is the median of their ratios within a round, with its interval.

A line for each plan says whether it fits (its measured peak is below the cap, and it runs with the allocator limited to
it), how far its predicted peak is from the measured one, its step beside the best that fits, and whether loss and
gradients are those of the program without checkpoints, bit for bit. Without a device's allocator (CPU) there are no
measured peaks; what autograd keeps stands for them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import checkpoint_bench  # first: it sets what torch reads when it is imported
import torch
from checkpoint_bench import TINY, Bench, Turns, whole_blocks

from diagnose.memory import Chain, Plan, cheapest_plan
from diagnose.units import format_bytes

CAPS = (0.60, 0.40, 0.25)
_LEFT_S = 25.0
"""Kept of the time for runs under the caps and for gradients."""


@dataclass(frozen=True)
class Asked:
    """A plan for a cap, and what it is held against."""

    cap: float
    budget_bytes: int
    plan: Plan | None
    fewest: int | None
    """The smallest number of blocks computed again that fits; None where none does."""


def main() -> None:
    """Measure, plan, search, compare; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for checkpoint_plan.json")
    parser.add_argument("--seconds", type=float, default=200.0, help="end within this time, about")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model that runs anywhere in seconds")
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    if args.tiny:
        torch.set_num_threads(1)  # more would only wait for each other
    bench = Bench(TINY if args.tiny else checkpoint_bench.Shape(), args.device)
    known = bench.measured_blocks()
    chain = known.chain if bench.on_device else without_allocator(known.chain)
    count = len(chain.blocks)
    firsts = [whole_blocks(range(k)) for k in range(count + 1)]
    peaks = [bench.peak_bytes(first) or chain.peak_bytes(first.again) for first in firsts]
    print(
        f"{count} blocks; without checkpoints {format_bytes(peaks[0])}, predicted {format_bytes(chain.peak_bytes())}; "
        f"all again {format_bytes(peaks[-1])}",
        flush=True,
    )
    asked = [plan_for(cap, chain, peaks, known.fragment_bytes) for cap in CAPS]
    choices = worth_a_turn(asked, count)
    turns = bench.in_turns(choices, ends - (_LEFT_S if bench.on_device else 0.0))
    measured = {one.plan: one for one in turns}
    plain, everything = measured[firsts[0]], measured[firsts[-1]]
    print(
        f"{len(choices)} choices in {len(plain.steps_ms)} rounds; without checkpoints {plain.step_ms:.1f} ms, "
        f"all again {everything.step_ms:.1f} ms",
        flush=True,
    )
    record: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if bench.on_device else "cpu",
        "fragment_bytes": known.fragment_bytes,
        "chain": asdict(chain),
        "peaks_bytes_of_first_k": peaks,
        "turns": list(map(asdict, turns)),
        "rows": [],
    }
    for one in asked:
        row = compared(one, measured, peaks, everything)
        if one.plan is not None:
            row |= {"runs_within": bench.runs_within(one.plan, one.budget_bytes)}
            row |= {"same_gradients": bench.same_gradients(one.plan)}
        record["rows"].append(row)
        (args.out / "checkpoint_plan.json").write_text(json.dumps(record, indent=1))
        print(line_of(row), flush=True)


def plan_for(cap: float, chain: Chain, peaks: Sequence[int], fragment_bytes: int) -> Asked:
    """The best plan under a cap, and the fewest blocks that fit."""
    budget = int(cap * peaks[0])
    fewest = next((k for k, peak in enumerate(peaks) if peak <= budget), None)
    return Asked(cap, budget, cheapest_plan(chain, budget - fragment_bytes), fewest)


def worth_a_turn(asked: Sequence[Asked], count: int) -> list[Plan]:
    """The plans, what they are held against, nothing and everything computed again; each once."""
    found = [whole_blocks(()), whole_blocks(range(count))]
    for one in asked:
        if one.fewest is not None:
            found += [whole_blocks(range(k)) for k in (one.fewest, one.fewest + 1) if k <= count]
        if one.plan is not None:
            k = len(one.plan.again)
            found += [without_figures(one.plan), *(whole_blocks(range(j)) for j in (k, k + 1) if j <= count)]
            found.append(spread(k, count))
    return list(dict.fromkeys(found))


def spread(k: int, count: int) -> Plan:
    """Return the plan that recomputes `k` blocks, spread evenly over the model."""
    return whole_blocks([at for at in range(count) if (at + 1) * k // count > at * k // count])


def without_figures(plan: Plan) -> Plan:
    """Drop a plan's estimates: plans that agree in the rest run the same steps."""
    return replace(plan, peak_bytes=0, recompute_ns=0)


def without_allocator(chain: Chain) -> Chain:
    """Estimate the peaks without an allocator: by the sum of what autograd keeps."""
    held, blocks = 0, []
    for block in chain.blocks:
        held += block.kept_bytes
        blocks.append(replace(block, forward_peak_bytes=held, backward_peak_bytes=held))
    return Chain(tuple(blocks), held, 0)


def compared(one: Asked, measured: dict[Plan, Turns], peaks: Sequence[int], everything: Turns) -> dict[str, Any]:
    """A plan beside the best that fits, beside as many blocks elsewhere, and beside all again."""
    row: dict[str, Any] = {"cap": one.cap, "budget_bytes": one.budget_bytes, "fewest": one.fewest, "plan": None}
    if one.plan is None:
        return row
    count, run = len(peaks) - 1, measured[without_figures(one.plan)]
    again = len(one.plan.again)
    fitting = [(k, found) for k in range(count + 1) if peaks[k] <= one.budget_bytes and (found := first(measured, k))]
    row |= {"plan": asdict(one.plan), "step_ms": run.step_ms, "peak_bytes": run.peak_bytes}
    row |= {"less_than_everything": [-part for part in reversed(behind(run, everything))]}
    row |= {"everything_ms": everything.step_ms}
    if fitting:
        best, turns = min(fitting, key=lambda found: found[1].step_ms)
        row |= {"best": best, "best_ms": turns.step_ms, "behind_best": behind(run, turns)}
    if (fewest := first(measured, one.fewest)) is not None:
        row |= {"fewest_ms": fewest.step_ms, "behind_fewest": behind(run, fewest)}
    if (elsewhere := measured.get(spread(again, count))) is not None:
        row |= {"spread_ms": elsewhere.step_ms, "spread_peak_bytes": elsewhere.peak_bytes}
    return row


def first(measured: dict[Plan, Turns], k: int | None) -> Turns | None:
    """Return the turns of the plan that recomputes the first `k` blocks; None where it had none."""
    return None if k is None else measured.get(whole_blocks(range(k)))


def behind(one: Turns, other: Turns) -> tuple[float, float, float]:
    """Return the relative slowdown of one side over rounds: lower end, median and upper end.

    The ends are the median's 95 % interval by ranks; with fewer than six rounds, all that was seen.
    """
    seen = sorted(mine / theirs - 1 for mine, theirs in zip(one.steps_ms, other.steps_ms, strict=True))
    lowest = max(0, int((len(seen) - 1) / 2 - 0.98 * sqrt(len(seen))))
    return seen[lowest], median(seen), seen[-1 - lowest]


def line_of(row: dict[str, Any]) -> str:
    """One plan, for people."""
    head, plan = f"cap {row['cap']:.0%}: ", row["plan"]
    if plan is None:
        return f"{head}no plan fits" + (f", though the first {row['fewest']} do" if row["fewest"] is not None else "")
    peak = f"peak {format_bytes(plan['peak_bytes'])} predicted"
    if measured := row["peak_bytes"]:
        peak += f", {format_bytes(measured)} measured ({plan['peak_bytes'] / measured - 1:+.1%})"
        peak += f", {'fits' if measured <= row['budget_bytes'] else 'DOES NOT FIT'}"
        peak += f", {'runs' if row['runs_within'] else 'DOES NOT RUN'} under it"
    beside = f"; all again {row['everything_ms']:.1f} ms ({_part(row['less_than_everything'])} less)"
    if "best" in row:
        beside += (
            f"; fastest that fits: the first {row['best']} at {row['best_ms']:.1f} ms ({_part(row['behind_best'])})"
        )
    if "behind_fewest" in row and row["fewest"] != row["best"]:
        beside += f", fewest {row['fewest']} at {row['fewest_ms']:.1f} ms ({_part(row['behind_fewest'])})"
    if "spread_ms" in row:
        beside += f"; as many, spread: {row['spread_ms']:.1f} ms"
        beside += f", peak {format_bytes(row['spread_peak_bytes'])}" if row["spread_peak_bytes"] else ""
    same = "gradients bitwise equal" if row["same_gradients"] else "GRADIENTS DIFFER"
    return f"{head}{len(plan['again'])} of the blocks again, {row['step_ms']:.1f} ms; {peak}{beside}; {same}"


def _part(interval: Sequence[float]) -> str:
    low, middle, high = interval
    return f"{middle:+.1%} [{low:+.1%}, {high:+.1%}]"


if __name__ == "__main__":
    main()
