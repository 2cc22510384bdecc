"""The transformer whose blocks are computed again, and what times it with one choice of them after the other."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # so that fragments do not decide what fits
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before torch makes its handles: gradients bit for bit

import torch
import torch.nn.functional as F
from probed_blocks import probed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diagnose.memory import Plan, RecordedBlocks, read_blocks

_TIMED = 2


@dataclass(frozen=True)
class Shape:
    """The model and batch that are trained."""

    blocks: int = 24
    width: int = 1024
    heads: int = 16
    length: int = 1024
    batch: int = 24
    words: int = 4096


TINY = Shape(blocks=6, width=32, heads=2, length=16, batch=2, words=64)


class Block(nn.Module):
    """Attention and a feed-forward part, with dropout: a recomputation has to draw the same numbers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))
        return out


class Transformer(nn.Module):
    """Computes the blocks of `again` a second time in the backward pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.words, bias=False)
        self.again: Collection[int] = ()

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number in self.again else block(x)
        logits = self.head(self.norm(x))
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), words.flatten())
        return loss


@dataclass(frozen=True)
class Turns:
    """The step times of one choice, one a turn."""

    plan: Plan
    steps_ms: tuple[float, ...]
    peak_bytes: int
    """Zero where no allocator tells."""

    @property
    def step_ms(self) -> float:
        return median(self.steps_ms)


class Bench:
    """One model, run with one choice of blocks after the other."""

    def __init__(self, shape: Shape, device: str) -> None:
        torch.manual_seed(0)
        self.shape, self.device = shape, device
        self.model = Transformer(shape).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.words = torch.randint(0, shape.words, (shape.batch, shape.length), device=device)

    @property
    def on_device(self) -> bool:
        return self.device == "cuda"

    def step(self) -> Tensor:
        """A step of the training loop; gradients stay until the next."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.on_device):
            loss: Tensor = self.model(self.words)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss

    def measured_blocks(self) -> RecordedBlocks:
        """Measure the blocks as the probe of a watched run does."""
        known = read_blocks(probed(self.step))
        assert known is not None, "the probe found no blocks"
        return known

    def use(self, plan: Plan) -> None:
        """Have the model compute again what a plan says."""
        self.model.again = frozenset(plan.again)

    def peak_bytes(self, plan: Plan) -> int:
        """The most that one step holds; zero where no allocator tells."""
        if not self.on_device:
            return 0
        self.use(plan)
        self.settle()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        self.settle()
        return int(torch.cuda.max_memory_allocated())

    def in_turns(self, plans: Sequence[Plan], ends: float = 0.0) -> list[Turns]:
        """Rounds there and back, so that what slows the machine for a while meets all plans alike.

        A turn for each in every round; one round in any case, and as many more as are done by `ends`.
        """
        times: list[list[float]] = [[] for _ in plans]
        peaks = [0] * len(plans)
        order, round_s = list(range(len(plans))), 0.0
        while not times[0] or time.monotonic() + round_s < ends:
            began = time.monotonic()
            for place in order:
                step_ms, peak = self._turn(plans[place])
                times[place].append(step_ms)
                peaks[place] = max(peaks[place], peak)
            order.reverse()
            round_s = time.monotonic() - began
        return [Turns(plan, tuple(seen), peak) for plan, seen, peak in zip(plans, times, peaks, strict=True)]

    def _turn(self, plan: Plan) -> tuple[float, int]:
        """A step's time, after one that is not counted; and the most that was held."""
        self.use(plan)
        self.step()
        self.settle()
        if self.on_device:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        for _ in range(_TIMED):
            self.step()
        self.settle()
        step_ms = 1000 * (time.perf_counter() - began) / _TIMED
        return step_ms, int(torch.cuda.max_memory_allocated()) if self.on_device else 0

    def runs_within(self, plan: Plan, budget_bytes: int) -> bool | None:
        """Whether steps run with the allocator limited to the budget; None without one."""
        if not self.on_device:
            return None
        self.use(plan)
        self.optimizer.zero_grad()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(budget_bytes / total)
        try:
            for _ in range(2):
                self.step()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            self.optimizer.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()

    def same_gradients(self, plan: Plan) -> bool:
        """Whether loss and gradients are those without checkpoints, bit for bit, under deterministic algorithms."""
        torch.use_deterministic_algorithms(True)
        found = []
        try:
            for chosen in (whole_blocks(()), plan):
                self.use(chosen)
                self.optimizer.zero_grad()
                torch.manual_seed(1)
                with torch.autocast(self.device, torch.bfloat16, enabled=self.on_device):
                    loss = self.model(self.words)
                torch.autograd.backward(loss)
                found.append([loss.detach(), *(one.grad for one in self.model.parameters() if one.grad is not None)])
        finally:
            torch.use_deterministic_algorithms(False)
            self.optimizer.zero_grad()
        return len(found[0]) == len(found[1]) and all(map(torch.equal, *found))

    def settle(self) -> None:
        if self.on_device:
            torch.cuda.synchronize()


def whole_blocks(again: Collection[int]) -> Plan:
    """These blocks computed again, whatever that holds and costs."""
    return Plan(tuple(again), 0, 0)
