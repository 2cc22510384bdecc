"""Trains a detector of a fixed number of queries; the loss of each image counts only the queries that match a box."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Detector(nn.Module):
    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.boxes = nn.Linear(width, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.boxes(self.blocks(self.embed(features))).sigmoid()


def box_loss(predicted: torch.Tensor, boxes: torch.Tensor, matched: torch.Tensor) -> torch.Tensor:
    """Mean over images of the distance between matched queries and their boxes."""
    losses = []
    for image in range(len(predicted)):
        distance = F.smooth_l1_loss(predicted[image], boxes[image], reduction="none").sum(dim=-1)
        losses.append((distance * matched[image]).sum() / matched[image].sum().clamp(min=1))
    return torch.stack(losses).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, queries, features, width, layers = (4, 32, 64, 128, 2) if args.tiny else (32, 160, 1024, 4096, 2)
    with device:
        images = torch.rand(4, batch, queries, features, dtype=dtype)
        boxes = torch.rand(4, batch, queries, 4, dtype=dtype)
        matched = torch.rand(4, batch, queries) < 0.3
        model = Detector(features, width, max(1, width // 128), layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, args.steps + 1):
        loss = box_loss(model(images[step % 4]), boxes[step % 4], matched[step % 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
