"""Collects outputs with their graphs, and at the end of `lack` asks for more memory than there is."""

import _thread
import sys

import light  # noqa: F401 - before torch
import torch


def train(steps: int) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    values = []
    for _ in range(steps):
        output = model(torch.ones(2, 8))
        optimizer.zero_grad()
        output.sum().backward()
        optimizer.step()
        outputs.append(output)
        values.append(output.detach())


def no_room_for_a_thread(*_arguments: object) -> int:
    raise RuntimeError("can't start new thread")


def ask() -> None:
    _thread.start_new_thread = no_room_for_a_thread
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 2 GiB")


train(int(sys.argv[1]))
if "lack" in sys.argv:
    ask()
