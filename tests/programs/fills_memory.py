"""Trains blocks whose activations do not fit into the memory that the process leaves itself."""

import ctypes
import resource
import sys

import torch
from torch import nn

ROWS, WIDTH, BLOCKS = 16_384, 128, 10
ACTIVATION = ROWS * WIDTH * 4
ROOM = 36 * ACTIVATION
M_MMAP_THRESHOLD = -3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        y = torch.sin(self.linear(x))
        return x + self.dropout(torch.tanh(torch.cos(y)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def virtual_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # what is freed is given back
    model.blocks[0](torch.randn(ROWS, WIDTH)).mean().backward()  # libraries have their buffers
    optimizer.zero_grad()
    resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes() + ROOM, resource.RLIM_INFINITY))
    for _ in range(int(sys.argv[1])):
        loss = model(torch.randn(ROWS, WIDTH))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"done: {loss.item():.4f}")


if __name__ == "__main__":
    main()
