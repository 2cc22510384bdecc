"""Trains a perceptron, with an evaluation beside it that never ends; noise stands in for data."""

import argparse
import os
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch import nn


def evaluate(size: int) -> None:
    """Multiply until whoever started this is gone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(size, size, device=device)
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(100):
            x = torch.tanh(x @ x)
        print(float(x.sum()), flush=True)


def start_evaluation(words: list[str]) -> subprocess.Popen[bytes]:
    """The evaluation, in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "--evaluate", *words], stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    parser.add_argument("--evaluate", action="store_true", help="be the evaluation")
    args = parser.parse_args()
    if args.evaluate:
        evaluate(64 if args.tiny else 4096)
        return

    evaluation = start_evaluation(["--tiny"] if args.tiny else [])
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, width, layers = (4, 32, 1) if args.tiny else (16384, 4096, 4)
    with device:
        data = torch.randn(4, batch, width)
        model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(args.steps):
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.mse_loss(model(data[step % 4]).float(), data[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")
    if evaluation is not None:
        evaluation.kill()


if __name__ == "__main__":
    main()
