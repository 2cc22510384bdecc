"""Trains on records of a knowledge base that is held in memory as Python objects."""

import argparse
import gc
import random

import torch
import torch.nn.functional as F
from torch import nn


class Entity:
    """One entry of the knowledge base, linked to others."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attributes = {"degree": number % 17, "label": number % 64}
        self.neighbours: list[Entity] = []


def knowledge_base(entities: int) -> list[Entity]:
    """Entities that know each other."""
    rng = random.Random(0)
    base = [Entity(number) for number in range(entities)]
    for entity in base:
        entity.neighbours = [base[int(rng.random() * entities)] for _ in range(3)]
    return base


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


class Ranker(nn.Module):
    def __init__(self, entities: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(entities, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, 64)

    def forward(self, entities: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(entities)).mean(dim=1))


def batch_of(base: list[Entity], rng: random.Random, size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Walks over the knowledge base, and the label where each began."""
    walks, labels = [], []
    for _ in range(size):
        entity = base[int(rng.random() * len(base))]
        labels.append(entity.attributes["label"])
        walk = []
        for _ in range(length):
            walk.append(entity.number % 4096)
            entity = entity.neighbours[int(rng.random() * 3)]
        walks.append(walk)
    pinned = torch.cuda.is_available()
    return torch.tensor(walks, pin_memory=pinned), torch.tensor(labels, pin_memory=pinned)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    entities, size, length, width, layers = (60_000, 16, 16, 384, 1) if args.tiny else (100_000, 128, 32, 4096, 2)
    base = knowledge_base(entities)
    gc.collect()
    gc.freeze()  # the knowledge base lives as long as the program
    rng = random.Random(1)
    batches = [batch_of(base, rng, size, length) for _ in range(8)]
    with device:
        model = Ranker(4096, width, max(1, width // 128), layers).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(1, args.steps + 1):
        walks, labels = batches[step % 8]
        walks, labels = walks.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = F.cross_entropy(model(walks), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
