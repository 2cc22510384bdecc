"""A compiled function that breaks at a print, and is compiled again for every length."""

from __future__ import annotations

import light  # noqa: F401 - before torch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        print(end="")
        return self.second(x)


def main() -> None:
    torch.set_num_threads(1)
    model = Net()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(14):
        loss = compiled(torch.ones(2 + step % 3, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
