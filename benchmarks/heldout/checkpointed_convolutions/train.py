"""A segmentation network of residual convolutions on random scans."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.SiLU(),
            nn.GroupNorm(8, 2 * width),
            nn.Conv2d(2 * width, width, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Segment(nn.Module):
    def __init__(self, width: int, stages: int, classes: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(1, width, 7, padding=3)
        self.stages = nn.ModuleList(Stage(width) for _ in range(stages))
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, scans: torch.Tensor) -> torch.Tensor:
        x = self.into(scans)
        for stage in self.stages:
            x = checkpoint(stage, x, use_reentrant=False)
        return self.out(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, stages = (1, 8, 8, 2) if args.tiny else (8, 192, 160, 8)
    with device:
        model = Segment(width, stages, 6).bfloat16().to(memory_format=torch.channels_last)
        scans = torch.randn(4, batch, 1, side, side, dtype=torch.bfloat16)
        classes = torch.randint(6, (4, batch, side, side))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        loss = F.cross_entropy(model(scans[step % 4]).float(), classes[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
