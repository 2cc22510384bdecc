"""Trains a recurrent network on long series; the cell is stepped through time in Python."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class SeriesModel(nn.Module):
    def __init__(self, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, hidden)
        self.cells = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        inputs = self.embed(series)
        for cell in self.cells:
            state = torch.zeros_like(inputs[:, 0])
            outputs = []
            for step in range(inputs.shape[1]):
                state = cell(inputs[:, step], state)
                outputs.append(state)
            inputs = torch.stack(outputs, dim=1)
        return self.head(inputs).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, features, hidden, layers = (8, 24, 8, 64, 1) if args.tiny else (256, 80, 64, 768, 2)
    with device:
        series = torch.randn(4, batch, length, features, dtype=dtype)
        targets = torch.randn(4, batch, length, dtype=dtype)
        model = SeriesModel(features, hidden, layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, args.steps + 1):
        loss = F.mse_loss(model(series[step % 4]), targets[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
