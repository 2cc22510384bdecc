"""Programs of several ranks, and what fixers answer about them."""

from __future__ import annotations

from rewriting import FIXERS

from diagnose.fixer import Advice, example_request

HEAD = """import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

"""
BY_HAND = (
    HEAD
    + '''
dist.init_process_group("gloo")
torch.manual_seed(0)


def evaluate(net, batches: int = 2) -> float:
    """The loss without dropout."""
    net.eval()
    loss = sum(net(torch.ones(4, 8)).square().mean() for _ in range(batches))
    net.train()
    return float(loss)


def named(net):
    return sorted(net.state_dict())


net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
net.to("cpu")
body = [p for n, p in net.named_parameters() if n.startswith("0.")]
rest = [p for n, p in net.named_parameters() if not n.startswith("0.")]
optimizer = torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": rest}], lr=0.1)
torch.manual_seed(1 + dist.get_rank())
losses = []
for step in range(6):
    optimizer.zero_grad()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    for parameter in net.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    optimizer.step()
    if dist.get_rank() == 0 and step % 2:
        losses.append(evaluate(net))
        losses.append(net(torch.ones(4, 8)).mean().item())
    losses.append(loss.item())
names = named(net)
weights = [value.double().sum().item() for value in net.state_dict().values()]
'''
)


def advised(name: str, text: str) -> str:
    """The advice of a fixer that leaves a program alone."""
    answer = FIXERS[name].rewrite(example_request("as-found", text))
    assert isinstance(answer, Advice), answer
    return answer.text
