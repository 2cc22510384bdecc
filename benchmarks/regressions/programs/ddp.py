"""Trains on two ranks, and accumulates gradients over two batches."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATION = 2


def build(width=48):
    return nn.Sequential(
        nn.Linear(16, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, 4),
    )


def batches(rank, count):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(count):
        yield torch.randn(16, 16, generator=generator), torch.randint(4, (16,), generator=generator)


def work(rank, world):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29511"
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    model = DDP(build().to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    total = torch.zeros(1, device=device)
    for step, (x, y) in enumerate(batches(rank, 200)):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        last = step % ACCUMULATION == ACCUMULATION - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = criterion(model(x), y) / ACCUMULATION
            loss.backward()
        total += loss.detach()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step % 100 == 99:
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} loss {total.item() / 200:.4f}")
            total.zero_()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2,), 2)
