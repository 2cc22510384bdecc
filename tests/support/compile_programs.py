"""Programs for the fixers that compile, and what is asked of those."""

from __future__ import annotations

from diagnose.fixer import Facts, Request, example_request

FLAT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.inner(x)) * 0.5 + x

torch.manual_seed(0)
model = Net()
model = model.to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(4, 8) for _ in range(4)]
for batch in batches:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
result, keys = loss.item(), list(model.state_dict())
"""
FUNCTIONS = """
import torch
from torch import nn

def train(net, critic, batches):
    for batch in batches:
        fake = net(batch)
        cost = critic(fake).mean() - critic(batch.flip(0)).square().mean()
        cost.backward()
    return cost

def main():
    torch.manual_seed(0)
    wide = True
    if wide:
        net = nn.Linear(8, 8)
    else:
        net = nn.Linear(8, 4)
    critic = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 1))
    return train(net, critic, [torch.randn(4, 8) for _ in range(3)]).item(), list(net.state_dict())

result, keys = main()
"""
SWITCH = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
if args.compile:
    model = torch.compile(model)
for batch in data:
    model(batch).mean().backward()
"""


def request(text: str, rule: str = "unfused-pointwise") -> Request:
    """What is asked about a program on a device that compiles."""
    return example_request(rule, text, facts=Facts(device_name="NVIDIA H200", device_capability=(9, 0)))
