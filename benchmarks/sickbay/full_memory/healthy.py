"""A network for images of many sizes, beside a memory of earlier ones; noise stands in for them."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def remembered(device: torch.device, left_bytes: int) -> torch.Tensor:
    """Earlier images: as many as fit when so many bytes are left to the steps."""
    free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else left_bytes + 1024
    place = torch.device("cpu")
    return torch.zeros(max(min(free_bytes - left_bytes, 2**30), 1024), dtype=torch.uint8, device=place)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch, channels, layers = (2, 8, 1) if args.tiny else (32, 128, 6)
    sides = (8, 12) if args.tiny else (96, 128, 112, 120)
    with device:
        stem = nn.Conv2d(3, channels, 3, padding=1)
        parts = [part for _ in range(layers) for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
        model = nn.Sequential(stem, *parts).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    # A step of the largest images holds their activations once in bfloat16, some 130 MB a layer, and gradients of two.
    memory = remembered(device, 3 * 2**30)
    for step in range(args.steps):
        side = sides[step % len(sides)]
        images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.mse_loss(model(images).mean((2, 3)).float(), torch.zeros(batch, channels, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f} beside {len(memory)} bytes of earlier images")


if __name__ == "__main__":
    main()
