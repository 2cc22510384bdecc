"""Trains a classifier and keeps its latest weights on disk."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

CHECKPOINT_EVERY = 5


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


class Classifier(nn.Module):
    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 32)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(frames)).mean(dim=1))


def train(folder: Path, steps: int, tiny: bool) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, features, width, layers = (2, 32, 64, 1024, 1) if tiny else (128, 256, 256, 2560, 1)
    with device:
        frames = torch.randn(2, batch, length, features, dtype=dtype)
        labels = torch.randint(0, 32, (2, batch))
        model = Classifier(features, width, max(1, width // 128), layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, steps + 1):
        loss = F.cross_entropy(model(frames[step % 2]), labels[step % 2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % CHECKPOINT_EVERY == 0:
            state = {"step": step, "model": model.state_dict()}
            torch.save(state, folder / "latest.pt")
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), args.steps, args.tiny)


if __name__ == "__main__":
    main()
