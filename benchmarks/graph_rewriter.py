"""A stack of Llama's blocks under a large vocabulary: eager, compiled, and with the backend `diagnose` for each.

    python benchmarks/graph_rewriter.py                      # on a CUDA or ROCm device, bfloat16, at most four minutes
    python benchmarks/graph_rewriter.py --seconds 200 compiled compiled-diagnose     # these two alone
    python benchmarks/graph_rewriter.py --tiny --out build   # the same at toy size on a CPU: shows that it works

Forward and backward of one model with the same weights and the same tokens, each way in a process of its own: the
median and quartiles of a step's time, the most memory allocated in the steps after the first, the loss, and what the
backend says that it did. Writes `graph_rewriter.json` and `graph_rewriter.md` below `--out`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "eager-diagnose": {"backend": "diagnose", "options": {"inner": "eager"}},
    "compiled": {"backend": "inductor"},
    "compiled-diagnose": {"backend": "diagnose"},
    "compiled-all-sites": {"backend": "diagnose", "options": {"rewrite": "all"}},
}
WARM_UP = 4


@dataclass(frozen=True)
class Size:
    """How large the model and its batch are."""

    layers: int = 4
    hidden: int = 4096
    heads: int = 32
    inner: int = 14336
    vocabulary: int = 128256
    sequences: int = 4
    tokens: int = 2048


TINY = Size(layers=2, hidden=64, heads=4, inner=128, vocabulary=512, sequences=2, tokens=16)


class Norm(nn.Module):
    """RMSNorm as Llama's code writes it out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def turned(x: Tensor) -> Tensor:
    """The halves of the last dimension exchanged, one negated."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class Block(nn.Module):
    """Attention with rotary positions, and a gated unit."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention, self.before_unit = Norm(size.hidden), Norm(size.hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(size.hidden, size.hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(size.hidden, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before_attention(x)
        q, k, v = (
            part(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.before_unit(x)
        out: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class Model(nn.Module):
    """Embedding, blocks, head and loss."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        width = size.hidden // size.heads
        angles = torch.outer(torch.arange(size.tokens), 10000.0 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main() -> int:
    """Run each way in a child, within the time given, and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=240.0, help="no way is begun after four fifths of these")
    parser.add_argument("--tiny", action="store_true", help="toy size, on a CPU too")
    parser.add_argument("--out", type=Path, default=Path("build/graph_rewriter"))
    parser.add_argument("--way", choices=WAYS, help="run this one here and print what it gave")
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(measured(WAYS[asked.way], TINY if asked.tiny else Size(), asked.seconds)))
        return 0
    if not asked.tiny and not torch.cuda.is_available():
        print("no CUDA or ROCm device: nothing measured (--tiny runs on a CPU)", file=sys.stderr)
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    begun, rows = time.monotonic(), {}
    for way in asked.ways or WAYS:
        left = asked.seconds - (time.monotonic() - begun)
        rows[way] = in_a_child(way, asked.tiny, left) if left > asked.seconds / 5 else {"problem": "no time left"}
        (asked.out / "graph_rewriter.json").write_text(json.dumps(rows, indent=1))
    said = [f"{way}:\n{row['said']}" for way, row in rows.items() if row.get("said")]
    table = "\n".join([header(asked.tiny), *(line(way, row) for way, row in rows.items())])
    (asked.out / "graph_rewriter.md").write_text("\n\n".join([table, *said]) + "\n")
    print("\n\n".join([*said, table]))
    return 0


def in_a_child(way: str, tiny: bool, seconds: float) -> dict[str, Any]:
    """What a way gave, or why it gave nothing."""
    command = [sys.executable, __file__, "--way", way, "--seconds", str(seconds / 6), *(["--tiny"] if tiny else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"not done after {seconds:.0f} s"}
    if done.returncode != 0:
        return {"problem": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(compile_options: dict[str, Any] | None, size: Size, seconds: float) -> dict[str, Any]:
    """Time and memory of forward and backward."""
    import diagnose.graph  # registers the backend where the package is not installed

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = Model(size).to(torch.bfloat16)
        tokens, targets = torch.randint(0, size.vocabulary, (2, size.sequences, size.tokens))
    run: Callable[..., Tensor] = model if compile_options is None else torch.compile(model, **compile_options)
    begun = time.monotonic()
    losses = [step(run, model, tokens, targets)]
    first_seconds = time.monotonic() - begun
    for _ in range(WARM_UP - 1):
        losses.append(step(run, model, tokens, targets))
    norm = float(torch.stack([part.grad.float().norm() for part in model.parameters() if part.grad is not None]).norm())
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times_ms: list[float] = []
    begun = time.monotonic()
    while len(times_ms) < 5 or (time.monotonic() - begun < seconds and len(times_ms) < 60):
        before = time.perf_counter()
        step(run, model, tokens, targets)
        times_ms.append((time.perf_counter() - before) * 1e3)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "size": asdict(size),
        "loss": losses[0],
        "gradient_norm": norm,
        "first_step_s": round(first_seconds, 1),
        "quartiles_ms": quantiles(times_ms, n=4),
        "steps": len(times_ms),
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "said": str(diagnose.graph.report()) if compile_options and compile_options["backend"] == "diagnose" else "",
    }


def step(run: Callable[..., Tensor], model: nn.Module, tokens: Tensor, targets: Tensor) -> float:
    """One forward and backward pass to its end on the device."""
    model.zero_grad(set_to_none=True)
    loss = run(tokens, targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    return float(loss.detach())


def header(tiny: bool) -> str:
    size = TINY if tiny else Size()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"{place}, torch {torch.__version__}, bfloat16, {size.layers} blocks of {size.hidden}, "
        f"{size.sequences} × {size.tokens} tokens, {size.vocabulary} classes\n\n"
        "| way | ms | quartiles | peak GiB | loss | gradient norm | first step, s |\n|---|--:|--:|--:|--:|--:|--:|"
    )


def line(way: str, row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"| {way} | {row['problem']} | | | | | |"
    low, middle, high = row["quartiles_ms"]
    peak = "not measured" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
    return (
        f"| {way} | {middle:.1f} | {low:.1f}–{high:.1f} | {peak} | {row['loss']:.5f} | {row['gradient_norm']:.5f} "
        f"| {row['first_step_s']} |"
    )


if __name__ == "__main__":
    sys.exit(main())
