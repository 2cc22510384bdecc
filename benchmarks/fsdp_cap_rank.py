"""One rank of `fsdp_cap.py`: one way to train, with the allocator limited where there is a cap."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # so that fragments do not decide what fits
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_buckets_rank import MICRO_STEPS
from probed_blocks import probed
from rank_ending import leave
from rank_model import SIZES, TINY, Job
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from diagnose.kernels import offload_state
from diagnose.memory import cheapest_plan, read_blocks, state_shares
from diagnose.model import Site

WARM_UP = 2
ROOM = 0.97
"""Of the cap that a plan may fill: what collectives take beside the step is not in the chain."""


class Training:
    """The model sharded in one way, with its step."""

    def __init__(self, job: Job, way: str, plan: dict[str, Any]) -> None:
        self.job = job
        model: Any = job.model()
        on_gpu = job.device.type == "cuda"
        if way == "checkpoints":
            checkpointed(model.blocks, plan)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if on_gpu else None, reduce_dtype=torch.float32)
        offload = CPUOffloadPolicy(pin_memory=on_gpu) if way == "CPUOffloadPolicy" else OffloadPolicy()
        for block in model.blocks:
            fully_shard(block, mp_policy=policy, offload_policy=offload)
        fully_shard(model, mp_policy=policy, offload_policy=offload)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        if way == "state on the host":
            offload_state(self.optimizer, plan["share"])
        self.batches = job.batches()
        self.losses: list[float] = []
        """The last of each step."""

    def step(self) -> None:
        """Micro-steps, and the optimizer's."""
        for _ in range(MICRO_STEPS):
            tokens = next(self.batches)
            logits = self.model(tokens[:, :-1])
            loss: Any = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            (loss / MICRO_STEPS).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(float(loss.detach()))


def checkpointed(blocks: Any, plan: dict[str, Any]) -> None:
    """Have the blocks of a plan computed again, within what shards them."""
    for number in plan["again"]:
        block = blocks[number]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def measured(training: Training) -> list[Site]:
    """Measure the blocks as the probe of a watched run does; returns them with the optimizer."""
    blocks = probed(training.step)
    local = sum(getattr(one, "_local_tensor", one).numel() for one in training.model.parameters())
    optimizer = Site("optimizer", "", 0, None, {"name": "AdamW", "elements": local})
    return [*blocks, optimizer]


def planned(sites: list[Site], cap_bytes: int, count: int) -> dict[str, Any]:
    """The cheapest of `count` blocks to compute again under the cap, and the least share of the state to move.

    Without a cap, or the peaks of a step, half of both.
    """
    known = read_blocks(sites)
    if known is None or not known.whole or not cap_bytes:
        return {"again": list(range(count // 2)), "share": 0.5}
    room = int(ROOM * cap_bytes) - known.fragment_bytes
    best, shares = cheapest_plan(known.chain, room), state_shares(known, cap_bytes, sites)
    again = list(range(count)) if best is None else best.again
    return {"again": again, "share": shares[0] if shares else 1.0}


def agreed(job: Job, found: object) -> Any:
    """Broadcast rank 0's value to all ranks."""
    told = [found]
    dist.broadcast_object_list(told, src=0, device=job.device)
    return told[0]


def main() -> None:
    """Train in one way for the time given, and write what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("target", type=Path)
    parser.add_argument("--until", type=float, required=True, help="on the monotonic clock; one step there is always")
    parser.add_argument("--plan", type=json.loads, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    job = joined(args.tiny, args.plan.get("cap_bytes", 0))
    plan = dict(args.plan)
    if "sites" in plan:
        sites = [Site(**site) for site in plan["sites"]]
        plan |= agreed(job, planned(sites, plan.get("cap_bytes", 0), job.sizes.layers))
    training = Training(job, args.way, plan)
    told: dict[str, Any] = {"said": said(args.way, plan)}
    if not args.plan and args.way == "defaults":
        found = measured(training)
        told["plan"] = {"sites": [{name: getattr(site, name) for name in site.__slots__} for site in found]}
    told |= timed(job, training, args.until)
    if job.rank == 0:
        args.target.write_text(json.dumps(told))
    leave()


def joined(tiny: bool, cap_bytes: int) -> Job:
    """This rank in its job, with the allocator limited to the cap; 0: to nothing."""
    on_gpu = torch.cuda.is_available() and not tiny
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        if cap_bytes:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(cap_bytes / total)
    else:
        torch.set_num_threads(1)
    # CPUOffloadPolicy reduces what lies on the host.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    return Job(device, (TINY if tiny else SIZES)["fsdp"], dist.get_rank())


def timed(job: Job, training: Training, end_at: float) -> dict[str, Any]:
    """The median step of the slowest rank, in ms, the highest peak of a rank in bytes, and the first losses."""
    on_gpu = job.device.type == "cuda"
    for _ in range(WARM_UP):
        training.step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while not times or (len(times) < 20 and job.slowest(float(time.monotonic() > end_at)) == 0):
        dist.barrier()
        job.synchronize()
        began = time.perf_counter()
        training.step()
        job.synchronize()
        times.append(job.slowest(time.perf_counter() - began))
    peak = job.slowest(float(torch.cuda.max_memory_reserved() if on_gpu else 0))
    return {
        "ms": 1e3 * statistics.median(times),
        "peak_bytes": int(peak),
        "losses": training.losses[: WARM_UP + 1],
    }


def said(way: str, plan: dict[str, Any]) -> str:
    """Describe a way in words."""
    if way == "checkpoints":
        return f"{len(plan.get('again', ()))} blocks computed again"
    return f"{plan.get('share', 0):.1%} of the state" if way == "state on the host" else "as torch does it"


if __name__ == "__main__":
    main()
