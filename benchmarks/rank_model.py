"""The model of the benchmarks of ranks, and what the ways to train it share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(attended.reshape(batch, length, width))
        after: torch.Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return after


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    length: int
    width: int
    heads: int
    layers: int
    batch: int


_DDP, _FSDP = Sizes(50304, 1024, 1024, 16, 24, 4), Sizes(50304, 1024, 2048, 16, 24, 2)
_TINY_DDP, _TINY_FSDP = Sizes(256, 16, 192, 2, 4, 2), Sizes(256, 16, 64, 2, 3, 2)
SIZES = {"ddp": _DDP, "ddp-sockets": _DDP, "fsdp": _FSDP, "fsdp-8": _FSDP}
TINY = {"ddp": _TINY_DDP, "ddp-sockets": _TINY_DDP, "fsdp": _TINY_FSDP, "fsdp-8": _TINY_FSDP}


@dataclass(frozen=True)
class Job:
    """The settings that all configurations share."""

    device: torch.device
    sizes: Sizes
    rank: int

    def model(self) -> GPT:
        torch.manual_seed(0)
        of = self.sizes
        with self.device:
            return GPT(of.vocabulary, of.length, of.width, of.heads, of.layers)

    def batches(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator(self.device).manual_seed(1 + self.rank)
        of = self.sizes
        shape = (8, of.batch, of.length + 1)
        tokens = torch.randint(of.vocabulary, shape, generator=generator, device=self.device)
        while True:
            yield from tokens

    def loss(self, model: nn.Module, tokens: torch.Tensor) -> Any:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = model(tokens[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def slowest(self, seconds: float) -> float:
        """The value of the rank on which it is largest."""
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)
