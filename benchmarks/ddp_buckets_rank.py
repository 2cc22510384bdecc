"""One rank of `ddp_buckets.py`: every configuration in turns, there and back."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_trace import exposed, traced
from rank_ending import leave
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from diagnose.measure import Measures
from diagnose.measure.bucket_plan import bucket_plans
from diagnose.measure.planned import planned_mb
from diagnose.trace.readers import open_traces

SWEEP_MB = (1, 5, 10, 25, 50, 100, 200, 400)
MICRO_STEPS = 4
WARM_UP = 4
"""Steps until the buckets have been put into the order of the gradients."""
FEWEST = 4


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(attended.reshape(batch, length, width))
        after: torch.Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return after


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    length: int
    width: int
    heads: int
    layers: int
    batch: int


SIZES = {
    "ddp": Sizes(50304, 1024, 1024, 16, 24, 4),
    "ddp-sockets": Sizes(50304, 1024, 1024, 16, 24, 4),
    "fsdp": Sizes(50304, 1024, 2048, 16, 24, 2),
}
_TINY_DDP = Sizes(256, 16, 192, 2, 4, 2)
TINY = {"ddp": _TINY_DDP, "ddp-sockets": _TINY_DDP, "fsdp": Sizes(256, 16, 64, 2, 3, 2)}


@dataclass(frozen=True)
class Job:
    """What all configurations share."""

    device: torch.device
    sizes: Sizes
    rank: int

    def model(self) -> GPT:
        torch.manual_seed(0)
        of = self.sizes
        with self.device:
            return GPT(of.vocabulary, of.length, of.width, of.heads, of.layers)

    def batches(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator(self.device).manual_seed(1 + self.rank)
        of = self.sizes
        shape = (8, of.batch, of.length + 1)
        tokens = torch.randint(of.vocabulary, shape, generator=generator, device=self.device)
        while True:
            yield from tokens

    def loss(self, model: nn.Module, tokens: torch.Tensor) -> Any:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = model(tokens[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def slowest(self, seconds: float) -> float:
        """The value of the rank on which it is largest."""
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)


Step = Callable[[], None]


@dataclass
class Configuration:
    """One way to train; `begin` builds it and gives the step, `end` takes it apart."""

    name: str
    begin: Callable[[], tuple[Step, Callable[[], None]]]
    note: str = ""


def rounds(job: Job, configurations: list[Configuration], end_at: float) -> dict[str, list[float]]:
    """The steps of each in seconds, from turns there and back, as many as there is time for."""
    found: dict[str, list[float]] = {one.name: [] for one in configurations}
    forward = True
    while True:
        left = end_at - time.monotonic()
        began = time.monotonic()
        for place, one in enumerate(configurations if forward else configurations[::-1]):
            share = max(0.0, end_at - time.monotonic()) / (len(configurations) - place) / (2 if forward else 1)
            # All ranks must take as many steps.
            found[one.name] += _turn(job, one, job.slowest(share))
        forward = not forward
        if not job.slowest(float(left - 2 * (time.monotonic() - began) > 0)) and forward:
            return found


def _turn(job: Job, one: Configuration, seconds: float) -> list[float]:
    step, finish = one.begin()
    for _ in range(WARM_UP - 1):
        step()
    job.synchronize()
    began = time.perf_counter()
    step()
    job.synchronize()
    each = job.slowest(time.perf_counter() - began)
    times = []
    for _ in range(min(40, max(FEWEST, int(seconds / each) - WARM_UP))):
        dist.barrier()
        job.synchronize()
        began = time.perf_counter()
        step()
        job.synchronize()
        times.append(time.perf_counter() - began)
    finish()
    return [job.slowest(seconds) for seconds in times]


def with_ddp(
    job: Job,
    model: GPT,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    micro: int = 1,
    sync: str = "last",
    hook: Any = None,
) -> Any:
    """Begins DistributedDataParallel over `model` under options; `sync`: never, last, or each micro-step."""

    def begin() -> tuple[Step, Callable[[], None]]:
        ids = [job.device.index] if job.device.type == "cuda" else None
        wrapped: Any = DistributedDataParallel(model, device_ids=ids, **options)
        if hook is not None:
            wrapped.register_comm_hook(*hook())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        batches = job.batches()

        def step() -> None:
            for number in range(micro):
                reduces = sync == "each" or (sync == "last" and number + 1 == micro)
                with contextlib.nullcontext() if reduces else wrapped.no_sync():
                    (job.loss(wrapped, next(batches)) / micro).backward()
            optimizer.step()
            optimizer.zero_grad()

        def end() -> None:
            nonlocal wrapped, optimizer
            del wrapped, optimizer
            gc.collect()

        return step, end

    return begin


def plan_of(job: Job, files: list[Path]) -> list[float]:
    """Sizes in MiB that `diagnose` plans from recordings of the default, by rank 0's; the same on all ranks."""
    told: list[Any] = [None]
    if job.rank == 0:
        found = bucket_plans(Measures(open_traces(files[:1])[0]))
        told = [planned_mb(found[0].size_bytes) if found else []]
    dist.broadcast_object_list(told, src=0, device=job.device)
    return list(told[0])


def with_exposed(job: Job, configurations: list[Configuration], folder: Path, part: str) -> dict[str, dict[str, Any]]:
    """Of the default and of each plan, what a recording of all ranks says is exposed."""
    found = {}
    for one in configurations:
        if one.name.startswith(("default", "planned")):
            files = traced(job, one.begin, folder, f"{part}-{one.name.replace(' ', '-').replace(',', '')}")
            if job.rank == 0:
                found[one.name] = exposed(files)
            dist.barrier()
    return found


def ddp(job: Job, folder: Path, part: str) -> list[Configuration]:
    model, sockets = job.model(), part == "ddp-sockets"
    plan = plan_of(job, traced(job, with_ddp(job, model), folder, f"{part}-plan"))
    view: dict[str, Any] = {"gradient_as_bucket_view": True}
    both = {**view, "static_graph": True}
    found = [
        Configuration("default (25 MB)", with_ddp(job, model)),
        Configuration("compute alone (no_sync)", with_ddp(job, model, sync="never")),
        Configuration("+ gradient_as_bucket_view", with_ddp(job, model, view)),
        Configuration("+ static_graph", with_ddp(job, model, both)),
    ]
    sweep = SWEEP_MB if not sockets else (100, 400)
    found += [Configuration(f"{size} MB", with_ddp(job, model, {"bucket_cap_mb": size})) for size in sweep]
    if plan:
        said = f"buckets of {', '.join(f'{size:g}' for size in plan)} MiB"
        caps = {"bucket_cap_mb_list": plan}
        found.append(Configuration("planned buckets", with_ddp(job, model, caps), said))
        found.append(Configuration("planned buckets, view, static graph", with_ddp(job, model, {**caps, **both}), said))

    def half() -> tuple[Any, Any]:
        return None, default_hooks.bf16_compress_hook

    def thin() -> tuple[Any, Any]:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        return state, powerSGD_hook.powerSGD_hook

    if job.device.type == "cuda":  # torch has this hook for devices only
        found.append(Configuration("bf16 gradients (training)", with_ddp(job, model, hook=half)))
    found.append(Configuration("PowerSGD of rank 4 (training)", with_ddp(job, model, hook=thin)))
    if sockets:
        each = with_ddp(job, model, micro=MICRO_STEPS, sync="each")
        found.append(Configuration(f"{MICRO_STEPS} micro-steps, reduced in each", each))
        last = with_ddp(job, model, micro=MICRO_STEPS)
        found.append(Configuration(f"{MICRO_STEPS} micro-steps, no_sync", last))
    return found


def with_fsdp(job: Job, *, keep: bool = False, prefetch: int = 0, accumulate: bool = False) -> Any:
    """Begins `fully_shard`: parameters kept after the forward pass, prefetched, gradients reduced once a step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def begin() -> tuple[Step, Callable[[], None]]:
        model: Any = job.model()
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if job.device.type == "cuda" else None, reduce_dtype=torch.float32
        )
        blocks: Any = list(model.blocks)
        for block in blocks:
            fully_shard(block, mp_policy=policy, reshard_after_forward=not keep)
        fully_shard(model, mp_policy=policy)
        for place, block in enumerate(blocks if prefetch > 1 else ()):
            block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 1 + prefetch])
            block.set_modules_to_backward_prefetch(blocks[max(0, place - prefetch) : place][::-1])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        batches = job.batches()

        def step() -> None:
            for number in range(MICRO_STEPS):
                if accumulate:
                    last = number + 1 == MICRO_STEPS
                    model.set_requires_gradient_sync(last)
                    model.set_reshard_after_backward(last)
                tokens = next(batches)
                logits = model(tokens[:, :-1])
                loss: Any = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
                (loss / MICRO_STEPS).backward()
            optimizer.step()
            optimizer.zero_grad()

        def end() -> None:
            nonlocal model, optimizer, blocks
            del model, optimizer, blocks
            gc.collect()  # modules that are sharded refer to each other
            if job.device.type == "cuda":
                torch.cuda.empty_cache()

        return step, end

    return begin


def fsdp(job: Job) -> list[Configuration]:
    return [
        Configuration("fully_shard defaults", with_fsdp(job)),
        Configuration("+ kept after the forward pass", with_fsdp(job, keep=True)),
        Configuration("+ two gathered ahead", with_fsdp(job, prefetch=2)),
        Configuration("+ reduced with the last micro-step alone", with_fsdp(job, accumulate=True)),
        Configuration("kept, and reduced with the last", with_fsdp(job, keep=True, accumulate=True)),
        Configuration("all three", with_fsdp(job, keep=True, prefetch=2, accumulate=True)),
    ]


def _row(one: Configuration, seconds: list[float], against: float) -> dict[str, Any]:
    """Of the table: the median step, the quartiles and the number of them, and its rate as a multiple of `against`."""
    low, median, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    quartiles = [1e3 * low, 1e3 * high]
    return {
        "name": one.name,
        "ms": 1e3 * median,
        "quartiles_ms": quartiles,
        "steps": len(seconds),
        "speedup": against / median,
        "note": one.note,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(SIZES))
    parser.add_argument("target", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    end_at = time.monotonic() + args.seconds
    on_gpu = torch.cuda.is_available() and not args.tiny
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    job = Job(device, (TINY if args.tiny else SIZES)[args.part], dist.get_rank())
    folder = args.target.parent
    configurations = fsdp(job) if args.part == "fsdp" else ddp(job, folder, args.part)
    first, *others = configurations
    configurations = [first, *(one for one in others if not args.only or any(part in one.name for part in args.only))]
    seconds = rounds(job, configurations, end_at)
    said = with_exposed(job, configurations, folder, args.part) if args.part != "fsdp" else {}
    if job.rank == 0:
        against = statistics.median(seconds[configurations[0].name])
        rows = [{**_row(one, seconds[one.name], against), **said.get(one.name, {})} for one in configurations]
        args.target.write_text(json.dumps(rows))
    leave()


if __name__ == "__main__":
    main()
