"""A tiny training run whose habits are given on the command line."""

import argparse
import os
import signal
import sys
import time

import light  # noqa: F401 - before torch
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--start-method", default=None)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--optimizers", type=int, default=1)
parser.add_argument("--end", choices=["return", "exit", "raise", "terminate"], default="return")
parser.add_argument("--end-after", type=int, default=0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--backend", default="eager")
parser.add_argument("--slow-item", type=float, default=0.001)


class Squares(Dataset[torch.Tensor]):
    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((16,), float(index))


def leave(how: str) -> None:
    if how == "exit":
        sys.exit(7)
    if how == "raise":
        raise ValueError("the program's own error")
    if how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)


def main() -> None:
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    models = [torch.nn.Linear(16, 16) for _ in range(max(1, options.optimizers))]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models[: options.optimizers]]
    forward = [torch.compile(model, backend=options.backend) for model in models] if options.compile else models
    loader = DataLoader(
        Squares(options.steps * options.accumulate * 2, options.slow_item),
        batch_size=2,
        num_workers=options.workers,
        multiprocessing_context=options.start_method,
    )
    done = 0
    for number, batch in enumerate(loader, 1):
        losses = [call(batch).square().mean() for call in forward]
        for loss in losses:
            loss.backward()
        if number % options.accumulate:
            continue
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        done += 1
        if done == options.end_after:
            leave(options.end)
    print(f"loss {sum(loss.item() for loss in losses):.6f}")


if __name__ == "__main__":
    main()
