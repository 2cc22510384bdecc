"""Trains a classifier of signals that are decoded once and stay in memory; the loader has no workers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Signals with a label each, all in memory."""

    def __init__(self, signals: int, length: int, features: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.signals = torch.rand(signals, length, features, generator=generator)
        self.labels = torch.randint(0, 32, (signals,), generator=generator)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = index % len(self.signals)
        return self.signals[row], self.labels[row]


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

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(signals)).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, features, width, layers = (8, 32, 16, 256, 2) if args.tiny else (64, 128, 64, 4096, 2)
    loader = DataLoader(Signals(8 * batch, length, features), batch_size=batch, pin_memory=device.type == "cuda")
    with device:
        model = Classifier(features, width, max(1, width // 128), layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step, (signals, labels) in enumerate(loader, 1):
        signals, labels = signals.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(signals.to(dtype)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
        if step >= args.steps:
            break


if __name__ == "__main__":
    main()
