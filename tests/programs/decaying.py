"""Trains until a file `told` lies in the working directory; its dataset is fast, slow, fast, slow and so on."""

import sys
import time
from pathlib import Path

import light  # noqa: F401 - half as long to import torch
import torch
from torch.utils.data import DataLoader, Dataset

FAST, SLOW, MOST = (int(word) for word in sys.argv[1:])
"""Samples in each stretch, and in all."""


class Samples(Dataset):
    """Ten milliseconds a sample in a fast stretch, forty in a slow one."""

    def __len__(self) -> int:
        return MOST

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01 if index % (FAST + SLOW) < FAST else 0.04)
        return torch.zeros(8)


model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=2):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if Path("told").exists():
        break
