"""Trains within modes that see each call of torch, and prints how often each was made."""

from collections import Counter
from typing import Any

import light  # noqa: F401 - before torch
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

functions, operators = Counter[str](), Counter[str]()


class Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        functions[str(resolve_name(function) or function)] += 1
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operators[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


with Functions(), Operators():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(24):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

for counts in (functions, operators):
    for name, count in sorted(counts.items()):
        print(name, count)
