"""A residual convolutional autoencoder, weights in bfloat16, in CUDA graphs; random images."""

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    side, width, blocks = (32, 8, 1) if args.tiny else (256, 512, 80)
    images_at_once = 1
    with device:
        model = nn.Sequential(
            nn.Conv2d(3, width, 8, stride=8),
            *(Residual(width) for _ in range(blocks)),
            nn.ConvTranspose2d(width, 3, 8, stride=8),
        ).to(memory_format=torch.channels_last, dtype=torch.bfloat16)
        images = torch.rand(64, 3, side, side, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    batches = images.split(images_at_once)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    if device.type == "cuda":
        model = torch.cuda.make_graphed_callables(model, (batches[0].clone(),))

    for step in range(args.steps):
        batch = batches[step % len(batches)]
        loss = F.mse_loss(model(batch).float(), batch.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
