"""Trains one backbone with a head for each of many properties of a molecule, and keeps every loss for the log."""

import argparse
from collections import defaultdict

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


class Molecules(nn.Module):
    def __init__(self, atoms: int, width: int, heads: int, layers: int, properties: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(atoms, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(properties))

    def forward(self, atoms: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.embed(atoms)).mean(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, width, layers, properties = (8, 32, 128, 2, 8) if args.tiny else (192, 64, 4096, 2, 64)
    with device:
        atoms = torch.randint(0, 128, (8, batch, length))
        targets = torch.rand(8, batch, properties, dtype=dtype)
        model = Molecules(128, width, max(1, width // 128), layers, properties).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    history = defaultdict(list)
    for step in range(1, args.steps + 1):
        hidden = model(atoms[step % 8])
        total = torch.zeros((), device=device)
        for number, (head, target) in enumerate(zip(model.heads, targets[step % 8].split(1, dim=1), strict=True)):
            loss = F.mse_loss(head(hidden), target)
            history[number].append(loss.detach())
            total = total + loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if step % 20 == 0:
            recent = torch.stack([torch.stack(losses[-20:]).mean() for losses in history.values()]).tolist()
            means = sorted((mean, number) for number, mean in enumerate(recent))
            history.clear()
            print(f"step {step:5d}  worst property {means[-1][1]}, loss {means[-1][0]:.4f}", flush=True)


if __name__ == "__main__":
    main()
