"""How good planned checkpointing is: a transformer under caps of 60, 40 and 25 % of its uncheckpointed peak.

    python benchmarks/checkpoint_plan.py --out OUT [--seconds 170] [--device cuda|cpu] [--tiny]

The probe that watches a run measures the blocks in five steps; from that plans are made for each cap, with the peak
they will have: of whole blocks, and of blocks that keep the results of some operators. A cap is one on what the
allocator takes of the device, so that what it could not give back is no room. Then the plans, every `k` of `n` (the
first `k` blocks computed again) and computing all of them again have their turns, two steps each, in rounds there and
back until the time ends: what slows the machine for a while meets them all. A line for each plan says whether it fits
(its measured peak is below the cap, and it runs with the allocator limited to it), how far its predicted peak is from
the measured one, its step against the best `k` that fits, and whether loss and gradients are those of the program
without checkpoints, bit for bit. Without a device's allocator (CPU) there are no measured peaks; what autograd keeps
stands for them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from statistics import median

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # so that fragments do not decide what fits
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch makes its handles: gradients bit for bit

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from diagnose.collect.inside.blocks import OPERATORS, Blocks
from diagnose.collect.inside.sites import Sites
from diagnose.memory import Chain, Plan, Recorded, cheapest, cheapest_split, recorded
from diagnose.model import Site
from diagnose.units import format_bytes

CAPS = (0.60, 0.40, 0.25)
_TIMED = 2


@dataclass(frozen=True)
class Shape:
    """What is trained."""

    blocks: int = 24
    width: int = 1024
    heads: int = 16
    length: int = 1024
    batch: int = 24
    words: int = 4096


TINY = Shape(blocks=6, width=32, heads=2, length=16, batch=2, words=64)


class Block(nn.Module):
    """Attention and a feed-forward part, with dropout: a recomputation has to draw the same numbers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))
        return out


class Transformer(nn.Module):
    """Computes the blocks of `again` a second time in the backward pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.words, bias=False)
        self.again: Collection[int] = ()
        self.keeping: Collection[int] = ()
        self.operators: Collection[str] = ()

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        kept = partial(
            create_selective_checkpoint_contexts, [reduce(getattr, one.split("."), torch.ops) for one in self.operators]
        )
        for number, block in enumerate(self.blocks):
            context = kept if number in self.keeping else noop_context_fn
            x = checkpoint(block, x, use_reentrant=False, context_fn=context) if number in self.again else block(x)
        logits = self.head(self.norm(x))
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), words.flatten())
        return loss


@dataclass(frozen=True)
class Run:
    """Steps with some blocks computed again."""

    again: tuple[int, ...]
    step_ms: float
    slowest_ms: float
    steps: int
    peak_bytes: int


class Bench:
    """One model, run with one choice of blocks after the other."""

    def __init__(self, shape: Shape, device: str) -> None:
        torch.manual_seed(0)
        self.shape, self.device = shape, device
        self.model = Transformer(shape).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.words = torch.randint(0, shape.words, (shape.batch, shape.length), device=device)

    @property
    def on_device(self) -> bool:
        return self.device == "cuda"

    def step(self) -> Tensor:
        """A step of the training loop; gradients stay until the next."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.on_device):
            loss: Tensor = self.model(self.words)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss

    def measured_blocks(self) -> Recorded:
        """What the probe of a watched run learns in its steps."""
        sites = Sites()
        probe = Blocks(sites)
        probe.install(torch)
        for index in range(OPERATORS + 1):
            self.step()
            probe.step_ended(index)
        lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
        known = recorded([Site(**line) for line in lines])
        assert known is not None, "the probe found no blocks"
        return known

    def use(self, plan: Plan) -> None:
        """Have the model compute again what a plan says."""
        self.model.again, self.model.keeping = frozenset(plan.again), frozenset(plan.keeping)
        self.model.operators = plan.operators

    def in_turns(self, plans: Sequence[Plan], least: int, ends: float) -> list[Run | None]:
        """The median step and the peak of each, in rounds; None of what had no turn before the time ended.

        The first `least` of them have one in any case.
        """
        times: list[list[float]] = [[] for _ in plans]
        peaks = [0] * len(plans)
        order = list(range(len(plans)))
        while not all(times[:least]) or time.monotonic() < ends:
            for place in order:
                if all(times[:least]) and time.monotonic() > ends:
                    break
                self.use(plans[place])
                self.step()
                self.settle()
                if self.on_device:
                    torch.cuda.reset_peak_memory_stats()
                for _ in range(_TIMED):
                    began = time.perf_counter()
                    self.step()
                    self.settle()
                    times[place].append(1000 * (time.perf_counter() - began))
                if self.on_device:
                    peaks[place] = max(peaks[place], torch.cuda.max_memory_allocated())
            order.reverse()
        return [
            Run(plan.again, median(seen), max(seen), len(seen), peak) if seen else None
            for plan, seen, peak in zip(plans, times, peaks, strict=True)
        ]

    def runs_within(self, plan: Plan, budget_bytes: int) -> bool | None:
        """Whether steps run with the allocator limited to the budget; None without one."""
        if not self.on_device:
            return None
        self.use(plan)
        self.optimizer.zero_grad()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(budget_bytes / total)
        try:
            for _ in range(2):
                self.step()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            self.optimizer.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()

    def same_gradients(self, plan: Plan) -> bool:
        """Whether loss and gradients are those without checkpoints, bit for bit, under deterministic algorithms."""
        torch.use_deterministic_algorithms(True)
        found = []
        try:
            for chosen in (whole_blocks(()), plan):
                self.use(chosen)
                self.optimizer.zero_grad()
                torch.manual_seed(1)
                with torch.autocast(self.device, torch.bfloat16, enabled=self.on_device):
                    loss = self.model(self.words)
                torch.autograd.backward(loss)
                found.append([loss.detach(), *(one.grad for one in self.model.parameters() if one.grad is not None)])
        finally:
            torch.use_deterministic_algorithms(False)
            self.optimizer.zero_grad()
        return len(found[0]) == len(found[1]) and all(map(torch.equal, *found))

    def settle(self) -> None:
        if self.on_device:
            torch.cuda.synchronize()


def whole_blocks(again: Collection[int]) -> Plan:
    """These blocks computed again, whatever that holds and costs."""
    return Plan(tuple(again), 0, 0)


def asked(plan: Plan) -> Plan:
    """What of a plan decides its steps: two that are alike in it are one."""
    return Plan(plan.again, 0, 0, plan.keeping, plan.operators)


def without_allocator(chain: Chain) -> Chain:
    """Where there is no allocator: the sum of what autograd keeps stands for the peaks."""
    held, blocks = 0, []
    for block in chain.blocks:
        held += block.kept_bytes
        blocks.append(replace(block, forward_peak_bytes=held, backward_peak_bytes=held))
    return Chain(tuple(blocks), held, 0)


def main() -> None:
    """Measure, plan, search, compare; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for checkpoint_plan.json")
    parser.add_argument("--seconds", type=float, default=170.0, help="end the search within this time")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model that runs anywhere in seconds")
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    bench = Bench(TINY if args.tiny else Shape(), args.device)
    known = bench.measured_blocks()
    (plain,) = bench.in_turns([whole_blocks(())], 1, time.monotonic() + 1)
    assert plain is not None, "the first always has its turn"
    chain = known.chain if bench.on_device else without_allocator(known.chain)
    whole = plain.peak_bytes or chain.peak_bytes()
    print(
        f"{len(chain.blocks)} blocks; without checkpoints {plain.step_ms:.1f} ms, peak {format_bytes(whole)}, "
        f"predicted {format_bytes(chain.peak_bytes())}",
        flush=True,
    )
    plans: list[tuple[float, Plan | None]] = []
    for cap in CAPS:
        room = int(cap * whole) - known.fragment_bytes
        split = cheapest_split(chain, room)
        plans += [(cap, cheapest(chain, room)), *([(cap, split)] if split is not None else [])]
    everything = whole_blocks(range(len(chain.blocks)))
    planned = [plan for _, plan in plans if plan is not None]
    numbers = [len(plan.again) for plan in planned]
    nearest_first = sorted(range(len(chain.blocks)), key=lambda k: min((abs(k - one) for one in numbers), default=k))
    compared = list(dict.fromkeys([*map(asked, planned), everything]))
    choices = list(dict.fromkeys([*compared, *(whole_blocks(range(k)) for k in nearest_first)]))
    measured = dict(zip(choices, bench.in_turns(choices, len(compared), ends - 20), strict=True))
    searched = [run for choice, run in measured.items() if run is not None and not choice.keeping]
    if left := sum(run is None for run in measured.values()):
        print(f"the time ended before {left} of {len(choices)} choices had a turn, those nearest to the plans first")
    print(f"steps of each: {min(run.steps for run in searched)} to {max(run.steps for run in searched)}", flush=True)
    rows = []
    for cap, plan in plans:
        budget = int(cap * whole)
        run = measured[asked(plan)] if plan is not None else None
        again = measured[everything]
        row: dict[str, object] = {"cap": cap, "budget_bytes": budget, "plan": plan and asdict(plan)}
        fitting = [one for one in searched if (one.peak_bytes or chain.peak_bytes(one.again)) <= budget]
        best = min(fitting, key=lambda one: one.step_ms, default=None)
        row |= {"best": best and asdict(best), "everything": again and asdict(again)}
        if plan is not None and run is not None:
            row |= {"run": asdict(run), "runs_within": bench.runs_within(plan, budget)}
            row |= {"same_gradients": bench.same_gradients(plan)}
        rows.append(row)
        print(line_of(row), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, object] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if bench.on_device else "cpu",
    }
    record |= {
        "fragment_bytes": known.fragment_bytes,
        "chain": asdict(chain),
        "plain": asdict(plain),
        "searched": list(map(asdict, searched)),
        "rows": rows,
    }
    (args.out / "checkpoint_plan.json").write_text(json.dumps(record, indent=1))


def line_of(row: dict[str, object]) -> str:
    """One cap, for people."""
    plan, run, best, everything = (row.get(name) for name in ("plan", "run", "best", "everything"))
    head = f"cap {row['cap']:.0%}: "
    if not isinstance(plan, dict) or not isinstance(run, dict) or not isinstance(everything, dict):
        return f"{head}no plan fits" + (f", though {len(best['again'])} do" if isinstance(best, dict) else "")
    measured, step = run["peak_bytes"], run["step_ms"]
    peak = f"peak {format_bytes(plan['peak_bytes'])} predicted"
    if measured:
        peak += f", {format_bytes(measured)} measured ({plan['peak_bytes'] / measured - 1:+.1%})"
        peak += f", {'fits' if measured <= int(str(row['budget_bytes'])) else 'DOES NOT FIT'}"
        peak += f", {'runs' if row['runs_within'] else 'DOES NOT RUN'} under it"
    beside = f"; everything again {everything['step_ms']:.1f} ms ({1 - step / everything['step_ms']:+.1%} less)"
    if isinstance(best, dict):
        beside += f"; best k {len(best['again'])} at {best['step_ms']:.1f} ms ({step / best['step_ms'] - 1:+.1%})"
    same = "gradients bitwise equal" if row["same_gradients"] else "GRADIENTS DIFFER"
    which = f"{len(plan['again'])} of the blocks again"
    if plan["keeping"]:
        which += f", {len(plan['keeping'])} of them but for {' and '.join(plan['operators'])}"
    return f"{head}{which}, {step:.1f} ms; {peak}{beside}; {same}"


if __name__ == "__main__":
    main()
