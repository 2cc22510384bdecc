"""A residual network on images of 64 × 64, random pixels for photographs; watches the gradient of every layer."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_one = nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_two = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm_one(self.one(x)))
        return F.relu(x + self.norm_two(self.two(y)))


class Watcher:
    """Keeps an exponential average of every gradient's norm."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.average: torch.Tensor | None = None

    def update(self) -> None:
        norms = torch.stack(torch._foreach_norm([parameter.grad for parameter in self.model.parameters()], torch.inf))
        self.average = norms if self.average is None else self.average.lerp(norms, 0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, blocks = (2, 8, 8, 2) if args.tiny else (192, 64, 128, 24)
    with device:
        model = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            *(Residual(width) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 100),
        ).to(memory_format=torch.channels_last)
        images = torch.randn(4, batch, 3, side, side)
        labels = torch.randint(100, (4, batch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    watcher = Watcher(model)

    for step in range(args.steps):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(images[step % 4].contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(scores.float(), labels[step % 4])
        optimizer.zero_grad()
        loss.backward()
        watcher.update()
        optimizer.step()
    print(f"loss {loss.item():.3f}", f"largest {watcher.average.max().item():.3f}")


if __name__ == "__main__":
    main()
