"""Models as people write them, and what the tests of the backend ask of them: numbers, graphs, sites rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnose import graph
from diagnose.graph.account import GraphRecord

WIDTH, HEADS, CLASSES, TOKENS = 32, 4, 64, 8


class WrittenNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def turned(x: Tensor) -> Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = WrittenNorm(), WrittenNorm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).split(WIDTH, dim=-1)
        )
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.second(x)
        result: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return result


class Llama(nn.Module):
    angles: Tensor

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.norm = WrittenNorm()
        self.head = nn.Linear(WIDTH, classes, bias=False)
        self.register_buffer("angles", torch.arange(TOKENS)[:, None] / torch.arange(1, 5).repeat(2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.angles.cos(), self.angles.sin())
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, logits.size(-1)), targets.view(-1), ignore_index=3)


class GPT(nn.Module):
    """Layer norms, tied weights, logits returned with the loss."""

    def __init__(self, returns_logits: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.units = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH), nn.Dropout(0.1)) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.head.weight = self.embedding.weight
        self.returns_logits = returns_logits

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        x = self.embedding(tokens)
        for norm, unit in zip(self.norms[:2], self.units, strict=True):
            x = x + unit(norm(x))
        logits = self.head(self.norms[2](x))
        loss = functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return (logits, loss) if self.returns_logits else loss


class ViT(nn.Module):
    """Batch norm of patches, a class token's layer norm, a small head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.scale = nn.BatchNorm2d(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        x = self.scale(self.patches(images)).flatten(2).transpose(1, 2)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return functional.cross_entropy(self.head(x.mean(1)), targets)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def batch(rows: int = 2) -> tuple[Tensor, Tensor]:
    tokens, targets = torch.randint(0, CLASSES, (2, rows, TOKENS))
    return tokens, targets


def new_graphs(call: Callable[[], Any]) -> tuple[Any, tuple[GraphRecord, ...]]:
    before = len(graph.report().graphs)
    result = call()
    return result, graph.report().graphs[before:]


def rewritten(graphs: tuple[GraphRecord, ...]) -> list[str]:
    return sorted(site.pattern for each in graphs for site in each.sites if site.rewritten)


def compile_all(model: Any, inner: str = "eager", **more: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(
        model, backend="diagnose", options={"inner": inner, "rewrite": "all"}, **more
    )
    return compiled


def loss_and_gradients(run: Callable[..., Any], model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    result = run(*inputs)
    loss = result[-1] if isinstance(result, tuple) else result
    loss.backward()
    return [loss.detach(), *(part.grad.clone() for part in model.parameters() if part.grad is not None)]


LLAMA_SITES = ["add-rms-norm"] * 4 + ["linear-cross-entropy"] + ["rotary"] * 2 + ["swiglu"] * 2
MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "llama": (Llama, LLAMA_SITES),
    "gpt": (GPT, ["add-layer-norm"] * 2 + ["linear-cross-entropy"]),
    "gpt that returns logits": (lambda: GPT(True), ["add-layer-norm"] * 2 + ["cross-entropy"]),
    "vit": (ViT, ["add-layer-norm", "linear-cross-entropy"]),
}
