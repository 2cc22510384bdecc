"""Trains a recogniser of characters, and follows the edit distance of its answers."""

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


class Recogniser(nn.Module):
    def __init__(self, features: int, characters: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, characters)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(frames)))


def edit_distance(one: list[int], other: list[int]) -> int:
    """Insertions, deletions and changes that lead from one to the other."""
    row = list(range(len(other) + 1))
    for number, left in enumerate(one, 1):
        diagonal, row[0] = row[0], number
        for column, right in enumerate(other, 1):
            best = diagonal + (left != right)
            diagonal = row[column]
            if diagonal + 1 < best:
                best = diagonal + 1
            if row[column - 1] + 1 < best:
                best = row[column - 1] + 1
            row[column] = best
    return row[-1]


def error_rate(answers: list[list[int]], targets: list[list[int]]) -> float:
    """Edit distance per character."""
    distances = [edit_distance(answer, target) for answer, target in zip(answers, targets, strict=True)]
    return sum(distances) / sum(len(target) for target in targets)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    batch, length, features, width, layers = (24, 96, 64, 128, 1) if args.tiny else (64, 64, 512, 4096, 2)
    with device:
        frames = torch.rand(4, batch, length, features, dtype=dtype)
        model = Recogniser(features, 64, width, max(1, width // 128), layers).to(dtype)
    texts = torch.randint(0, 64, (4, batch, length))
    targets = texts.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rates = []
    for step in range(1, args.steps + 1):
        logits = model(frames[step % 4])
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step % 4].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            answers = logits.argmax(dim=-1).tolist()
            rates.append(error_rate(answers[:24], texts[step % 4].tolist()[:24]))
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  character error rate {rates[-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
