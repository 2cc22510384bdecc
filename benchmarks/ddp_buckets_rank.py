"""One rank of `ddp_buckets.py`: every configuration in turns, there and back."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accuracy_record import write_atomically
from ddp_trace import exposed, traced
from rank_ending import leave
from rank_model import GPT, SIZES, TINY, Job
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

SWEEP_MB = (1, 5, 10, 25, 50, 100, 200, 400)
MICRO_STEPS = 4
MICRO_STEPS_OF = {"fsdp-8": 8}
"""Of sharded models, where it is not `MICRO_STEPS`."""
WARM_UP = 4
"""Steps until the buckets have been put into the order of the gradients."""
FEWEST = 4
ALWAYS = 2
"""Configurations that have a turn even if the time is over: the default and the foremost other."""


Step = Callable[[], None]


@dataclass
class Configuration:
    """One way to train; `begin` builds it and gives the step, `end` takes it apart."""

    name: str
    begin: Callable[[], tuple[Step, Callable[[], None]]]
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    """Its steps so far."""
    exposed: dict[str, float | None] = field(default_factory=dict)
    """What a recording of all ranks says."""


def rounds(job: Job, configurations: list[Configuration], end_at: float, tell: Callable[[], None]) -> None:
    """Give all their turns, there and back, as often as there is time for; `tell` is called after each.

    Once the time is over nobody gets a turn any more: those at the end may be left without one, the first `ALWAYS` not.
    """
    forward, turns = True, 0
    while True:
        began = time.monotonic()
        for place, one in enumerate(configurations if forward else configurations[::-1]):
            left = end_at - time.monotonic()
            if job.slowest(float(left <= 0)) and turns >= ALWAYS:
                return
            turns += 1
            # All ranks must take as many steps.
            one.seconds += _turn(job, one, job.slowest(left / (len(configurations) - place) / (2 if forward else 1)))
            tell()
        forward = not forward
        if forward and job.slowest(float(time.monotonic() + 2 * (time.monotonic() - began) > end_at)):
            return


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


def record(job: Job, one: Configuration, folder: Path, part: str) -> None:
    """Record all ranks, for what is exposed."""
    files = traced(job, one.begin, folder, f"{part}-{one.name.replace(' ', '-').replace(',', '')}")
    if job.rank == 0:
        one.exposed = exposed(files)
    dist.barrier()


def ddp(job: Job, folder: Path, part: str) -> list[Configuration]:
    """The default, which is recorded, then all else by how much hangs on it."""
    model, sockets = job.model(), part == "ddp-sockets"
    default = Configuration("default (25 MB)", with_ddp(job, model))
    record(job, default, folder, part)
    view: dict[str, Any] = {"gradient_as_bucket_view": True}
    both = {**view, "static_graph": True}
    found = [default]
    if sockets:
        each = with_ddp(job, model, micro=MICRO_STEPS, sync="each")
        found.append(Configuration(f"{MICRO_STEPS} micro-steps, reduced in each", each))
        last = with_ddp(job, model, micro=MICRO_STEPS)
        found.append(Configuration(f"{MICRO_STEPS} micro-steps, no_sync", last))

    def half() -> tuple[Any, Any]:
        return None, default_hooks.bf16_compress_hook

    def thin() -> tuple[Any, Any]:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        return state, powerSGD_hook.powerSGD_hook

    if job.device.type == "cuda":
        # torch has the one for devices only; the other over gloo sends the parts of several buckets in any order, on
        # each rank in another.
        found.append(Configuration("bf16 gradients (training)", with_ddp(job, model, hook=half)))
        found.append(Configuration("PowerSGD of rank 4 (training)", with_ddp(job, model, hook=thin)))
    found += [Configuration(f"{size} MB", with_ddp(job, model, {"bucket_cap_mb": size})) for size in SWEEP_MB]
    return [
        *found,
        Configuration("compute alone (no_sync)", with_ddp(job, model, sync="never")),
        Configuration("+ gradient_as_bucket_view", with_ddp(job, model, view)),
        Configuration("+ static_graph", with_ddp(job, model, both)),
    ]


def with_fsdp(job: Job, micro: int, *, keep: bool = False, prefetch: int = 0, accumulate: bool = False) -> Any:
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
            for number in range(micro):
                if accumulate:
                    last = number + 1 == micro
                    model.set_requires_gradient_sync(last)
                    model.set_reshard_after_backward(last)
                tokens = next(batches)
                logits = model(tokens[:, :-1])
                loss: Any = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
                (loss / micro).backward()
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


def fsdp(job: Job, micro: int) -> list[Configuration]:
    return [
        Configuration("fully_shard defaults", with_fsdp(job, micro)),
        Configuration("all three", with_fsdp(job, micro, keep=True, prefetch=2, accumulate=True)),
        Configuration("kept, and reduced with the last", with_fsdp(job, micro, keep=True, accumulate=True)),
        Configuration("+ kept after the forward pass", with_fsdp(job, micro, keep=True)),
        Configuration("+ two gathered ahead", with_fsdp(job, micro, prefetch=2)),
        Configuration("+ reduced with the last micro-step alone", with_fsdp(job, micro, accumulate=True)),
    ]


def _row(one: Configuration, against: float | None) -> dict[str, Any]:
    """Format a row of the table: the median step, its quartiles and count, and its rate as a multiple of `against`.

    None for what is not known, of a configuration that has had no turn, all.
    """
    row: dict[str, Any] = {"name": one.name, "steps": len(one.seconds), "note": one.note, **one.exposed}
    if not one.seconds:
        return {**row, "ms": None, "quartiles_ms": None, "speedup": None}
    low, median, high = statistics.quantiles(one.seconds, n=4) if len(one.seconds) > 1 else one.seconds * 3
    quartiles = [1e3 * low, 1e3 * high]
    return {**row, "ms": 1e3 * median, "quartiles_ms": quartiles, "speedup": against and against / median}


def write(target: Path, configurations: list[Configuration]) -> None:
    """All that is known so far, whole or not at all."""
    first = configurations[0].seconds
    rows = [_row(one, statistics.median(first) if first else None) for one in configurations]
    write_atomically(target, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(SIZES))
    parser.add_argument("target", type=Path)
    parser.add_argument("--until", type=float, required=True, help="on the monotonic clock")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available() and not args.tiny
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    job = Job(device, (TINY if args.tiny else SIZES)[args.part], dist.get_rank())
    if args.part in ("fsdp", "fsdp-8"):
        configurations = fsdp(job, MICRO_STEPS_OF.get(args.part, MICRO_STEPS))
    else:
        configurations = ddp(job, args.target.parent, args.part)
    first, *others = configurations
    configurations = [first, *(one for one in others if not args.only or any(part in one.name for part in args.only))]

    def tell() -> None:
        if job.rank == 0:
            write(args.target, configurations)

    tell()
    rounds(job, configurations, args.until, tell)
    leave()


if __name__ == "__main__":
    main()
