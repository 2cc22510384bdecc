"""A residual network in bfloat16 and channels-last format; noise stands in for images."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two convolutions of three by three, each normalised, around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + x)


class Network(nn.Module):
    def __init__(self, channels: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, channels, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*(Block(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, channels, blocks = (2, 16, 16, 1) if args.tiny else (128, 56, 64, 12)
    with device:
        images = torch.randn(4, batch, 8, side, side)
        labels = torch.randint(16, (4, batch))
        model = Network(channels, blocks, 16).to(memory_format=torch.channels_last)
    if not args.tiny:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    for step in range(args.steps):
        batch_images = images[step % 4].contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(batch_images)
        loss = F.cross_entropy(logits.float(), labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
