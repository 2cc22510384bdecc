"""Compiles a training step that breaks into several graphs, and prints at which functions the compiler looked."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.convert_frame import ConvertFrameAssert

look = ConvertFrameAssert.__call__


def told(converter: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    print(Path(frame.f_code.co_filename).name, frame.f_code.co_name)
    return look(converter, frame, *args, **kwargs)


ConvertFrameAssert.__call__ = told  # type: ignore[method-assign]
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="eager")
def step(batch: torch.Tensor) -> None:
    model(batch).sum().backward()
    print("a break")
    optimizer.step()
    optimizer.zero_grad()


for _ in range(14):
    step(torch.ones(2, 8))
