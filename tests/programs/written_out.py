"""A tiny training run that computes in operators, helpers and modules, and can use what a profiler must give way to."""

import argparse
import sys

import light  # noqa: F401 - before torch
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--profile-at", type=int, default=-1)
parser.add_argument("--debugger", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--slow-python", type=int, default=0)


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        z = 0.5 * y * (1.0 + torch.tanh(y))
        return halved(z) + y


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def main() -> None:
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.debugger:
        sys.settrace(lambda *_: None)
    model = Gate()
    call = torch.compile(model, backend="eager") if options.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(40):
        x = torch.ones(4, 16)
        if number == options.profile_at:
            with torch.profiler.profile():
                x = x * 2
        total = 0
        for one in range(options.slow_python):
            total += one
        loss = (call(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(sys.gettrace() is not None, flush=True)


if __name__ == "__main__":
    main()
