"""Two ranks on gloo: run it with torchrun. An argument says how many steps."""

import sys

import light  # noqa: F401 - before torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(32, 32), bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
    model(torch.ones(4, 32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
del model  # it holds the group, whose threads would outlive it: see benchmarks/rank_ending.py
dist.destroy_process_group()
