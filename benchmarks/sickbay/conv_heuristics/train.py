"""Segmentation of volumes by a small 3D encoder and decoder under bfloat16 autocast; random blobs for scans."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Stage(nn.Module):
    """A grouped and a dilated convolution."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.grouped = nn.Conv3d(width, width, 3, padding=1, groups=groups, bias=False)
        self.dilated = nn.Conv3d(width, width, 3, padding=2, dilation=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.dilated(self.grouped(x)), inplace=True)


class Segmenter(nn.Module):
    """Volumes (n, 1, s, s, s) to logits (n, 2, s, s, s)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv3d(1, width, 5, padding=2, stride=2)
        self.fine = Stage(width, groups)
        self.down = nn.Conv3d(width, 2 * width, 2, stride=2)
        self.coarse = nn.Sequential(Stage(2 * width, groups), Stage(2 * width, groups))
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.head = nn.ConvTranspose3d(width, 2, 2, stride=2)

    def forward(self, volumes: torch.Tensor) -> torch.Tensor:
        fine = self.fine(self.stem(volumes))
        return self.head(fine + self.up(self.coarse(self.down(fine))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, groups = (1, 8, 8, 4) if args.tiny else (4, 96, 128, 8)
    with device:
        model = Segmenter(width, groups).to(memory_format=torch.channels_last_3d)
        scans = F.avg_pool3d(torch.randn(8 * batch, 1, side, side, side), 5, 1, 2)
    labels = (scans[:, 0] > 0).long().split(batch)
    scans = scans.to(memory_format=torch.channels_last_3d).split(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    for step in range(args.steps):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(scans[step % len(scans)])
            loss = F.cross_entropy(logits, labels[step % len(labels)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
