"""Two ranks on gloo that take their time: run it with a torchrun on each of two hosts."""

import time

import light  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(250):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03 if dist.get_rank() else 0)  # far more than a busy machine adds at random
del model  # it holds the group, whose threads would outlive it: see benchmarks/rank_ending.py
dist.destroy_process_group()
