"""Image super-resolution with residual convolutions under bfloat16 autocast; random patches for photos."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(F.relu(self.first(x), inplace=True))


class SuperResolution(nn.Module):
    """Twice the side: (n, 3, s, s) to (n, 3, 2s, 2s)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(blocks)))
        self.tail = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.head(images)
        return self.tail(x + self.body(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, side, width, blocks = (2, 8, 8, 1) if args.tiny else (64, 48, 256, 12)
    layout = torch.contiguous_format
    with device:
        model = SuperResolution(width, blocks).to(memory_format=layout)
        wanted = F.interpolate(torch.rand(8 * batch, 3, side // 4, side // 4), scale_factor=8, mode="bilinear")
    given = F.avg_pool2d(wanted, 2)
    given, wanted = (images.to(memory_format=layout).split(batch) for images in (given, wanted))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    for step in range(args.steps):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            made = model(given[step % len(given)])
        loss = F.l1_loss(made.float(), wanted[step % len(wanted)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
