"""Compiles a function whose outputs are views of a product, and one whose output is none, each twice from the cache."""

import json

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

weight = torch.randn(8, 4, requires_grad=True)
x = torch.randn(2, 3, 4)


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = F.linear(x, weight)
    return both[..., :2], both[..., 2:]


def product(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.flatten(0, 1) @ weight.t(),)


def cached(function) -> dict[str, int]:
    """What the cache did in two compilations."""
    counters.clear()
    for _ in range(2):
        torch._dynamo.reset()
        outputs = torch.compile(function)(x)
        torch.stack([output.sum() for output in outputs]).sum().backward()
        assert all(map(torch.equal, outputs, function(x)))
    did = counters["aot_autograd"]
    return {name: did[f"autograd_cache_{name}"] for name in ("saved", "hit", "bypass")}


print(json.dumps([cached(halves), cached(product)]))
