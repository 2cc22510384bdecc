"""A stack of Llama's blocks under a large vocabulary: eager, compiled, and with the backend `diagnose` for each.

    python benchmarks/graph_rewriter.py                      # on a CUDA or ROCm device, bfloat16, at most four minutes
    python benchmarks/graph_rewriter.py --seconds 200 compiled compiled-diagnose     # these two alone
    python benchmarks/graph_rewriter.py --tiny --out build   # the same at toy size on a CPU: shows that it works

Forward and backward of one model with one batch of tokens, all ways in one process: the median and quartiles of a
step's time, the most memory allocated in the steps after the first, the loss, and what the backend says that it did.
What compiles has its turn first. A few steps of each are timed as soon as it has run, and said; then all take turns
while there is time. Of first steps those of later ways are shorter: Inductor's caches hold what earlier ones compiled.

Each figure goes to `graph_rewriter.jsonl` below `--out` as soon as it is known: whoever ends this early has what was
measured. `graph_rewriter.md` is the table. A way that takes the process with it costs itself alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WAYS: dict[str, dict[str, Any] | None] = {
    "compiled": {"backend": "inductor"},
    "compiled-diagnose": {"backend": "diagnose"},
    "eager": None,
    "eager-diagnose": {"backend": "diagnose", "options": {"inner": "eager"}},
    "compiled-all-sites": {"backend": "diagnose", "options": {"rewrite": "all"}},
}
WARM_UP = 4
STEPS = 5
"""Of a turn."""
MOST, MOST_TINY = 60, 10
"""Steps of a way that are timed."""
LEFT_S = 5.0
"""Kept of the time to end in order."""


@dataclass(frozen=True)
class Size:
    """The size of the model and its batch."""

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
    """Run the ways in a child, within the time given, and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=240.0, help="end within this time")
    parser.add_argument("--tiny", action="store_true", help="toy size, on a CPU too")
    parser.add_argument("--out", type=Path, default=Path("build/graph_rewriter"))
    parser.add_argument("--here", action="store_true", help="run them in this process, and write figures alone")
    asked = parser.parse_args()
    ways = asked.ways or list(WAYS)
    figures = asked.out / "graph_rewriter.jsonl"
    ends = time.monotonic() + asked.seconds
    if asked.here:
        measure(ways, *((TINY, MOST_TINY) if asked.tiny else (Size(), MOST)), ends, figures)
        return 0
    if not asked.tiny and not torch.cuda.is_available():
        print("no CUDA or ROCm device: nothing measured (--tiny runs on a CPU)", file=sys.stderr)
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    figures.write_text("")
    rows = in_children(ways, asked.tiny, asked.out, ends)
    said = [f"{way}:\n{row['said']}" for way, row in rows.items() if row.get("said")]
    table = "\n".join([header(asked.tiny), *(line(way, row) for way, row in rows.items())])
    (asked.out / "graph_rewriter.md").write_text("\n\n".join([table, *said]) + "\n")
    print("\n\n".join([*said, table]))
    return 0


def in_children(ways: Sequence[str], tiny: bool, out: Path, ends: float) -> dict[str, dict[str, Any]]:
    """Run each way in a child process; a new child goes on after a way that ended its process."""
    left = list(ways)
    while left and (seconds := ends - time.monotonic()) > 0:
        ended = in_a_child(left, tiny, out, seconds)
        rows = read(out / "graph_rewriter.jsonl")
        if not ended:
            break
        at = next((place for place, way in enumerate(left) if "done" not in rows.get(way, {})), len(left))
        if at < len(left):
            note(out / "graph_rewriter.jsonl", left[at], {"problem": ended})
        left = left[at + 1 :]
    rows = read(out / "graph_rewriter.jsonl")
    return {way: rows.get(way, {"problem": "no time left"}) for way in ways}


def in_a_child(ways: Sequence[str], tiny: bool, out: Path, seconds: float) -> str:
    """Why a child ended before its time; empty where it did not."""
    command = [sys.executable, __file__, *ways, "--here", "--seconds", str(seconds - LEFT_S), "--out", str(out)]
    with (out / "graph_rewriter.log").open("a+") as log:
        child = subprocess.Popen([*command, *(["--tiny"] if tiny else [])], stderr=log, start_new_session=True)
        try:
            if child.wait(timeout=seconds) == 0:
                return ""
        except subprocess.TimeoutExpired:
            return ""
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # Inductor's workers, too
                child.wait()
        log.seek(0)
        return (log.read().strip().splitlines() or [f"ended with {child.returncode}"])[-1]


@dataclass
class Way:
    """One way, and what its steps took so far."""

    name: str
    run: Callable[..., Tensor]
    times_ms: list[float] = field(default_factory=list)


def measure(names: Sequence[str], size: Size, most: int, ends: float, figures: Path) -> None:
    """First steps and a few timed ones of each way; then turns of all."""
    import diagnose.graph  # registers the backend where the package is not installed

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = Model(size).to(torch.bfloat16)
        tokens, targets = torch.randint(0, size.vocabulary, (2, size.sequences, size.tokens))
    ways: list[Way] = []
    for name in names:
        if ways and time.monotonic() > ends:
            break
        options, graphs = WAYS[name], len(diagnose.graph.report().graphs)
        way = Way(name, model if options is None else torch.compile(model, **options))
        note(figures, name, {"begun": True})
        try:
            begin(way, model, (tokens, targets), figures)
        except Exception as error:  # noqa: BLE001 a way that cannot run is a result, and stops no other
            note(figures, name, {"problem": f"{type(error).__name__}: {error}".splitlines()[0], "done": True})
            model.zero_grad(set_to_none=True)
            continue
        if said := diagnose.graph.report().graphs[graphs:]:
            note(figures, name, {"said": "\n".join(map(str, said))})
        ways.append(way)
    round_s = 0.0
    while ways and len(ways[0].times_ms) < most and time.monotonic() + round_s < ends:
        begun = time.monotonic()
        for way in ways:
            turn(way, model, (tokens, targets), figures)
        ways.reverse()
        round_s = time.monotonic() - begun


def begin(way: Way, model: nn.Module, batch: tuple[Tensor, Tensor], figures: Path) -> None:
    """The first steps of a way, its peak, and the first of its turns; each figure is noted when it is there."""
    begun = time.monotonic()
    loss = step(way.run, model, *batch)
    note(figures, way.name, {"first_step_s": round(time.monotonic() - begun, 1), "loss": loss})
    for _ in range(WARM_UP - 1):
        step(way.run, model, *batch)
    norms = [part.grad.float().norm() for part in model.parameters() if part.grad is not None]
    if batch[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
    turn(way, model, batch, figures)
    peak = torch.cuda.max_memory_allocated() if batch[0].is_cuda else None
    note(figures, way.name, {"gradient_norm": float(torch.stack(norms).norm()), "peak_bytes": peak, "done": True})


def turn(way: Way, model: nn.Module, batch: tuple[Tensor, Tensor], figures: Path) -> None:
    """Some steps, each by the clock."""
    for _ in range(STEPS):
        before = time.perf_counter()
        step(way.run, model, *batch)
        way.times_ms.append((time.perf_counter() - before) * 1e3)
    note(figures, way.name, {"quartiles_ms": quantiles(way.times_ms, n=4), "steps": len(way.times_ms)})


def note(figures: Path, way: str, known: dict[str, Any]) -> None:
    """Add what is known of a way."""
    with figures.open("a") as file:
        file.write(json.dumps({"way": way, **known}) + "\n")
    if first := known.get("first_step_s"):
        print(f"{way}: first step {first} s", flush=True)
    elif known.get("steps") == STEPS:
        print(f"{way}: {known['quartiles_ms'][1]:.1f} ms a step, the first {STEPS} timed", flush=True)


def read(figures: Path) -> dict[str, dict[str, Any]]:
    """All that is known of each way."""
    rows: dict[str, dict[str, Any]] = {}
    for text in figures.read_text().splitlines():
        known = json.loads(text)
        rows.setdefault(known.pop("way"), {}).update(known)
    return rows


def step(run: Callable[..., Tensor], model: nn.Module, tokens: Tensor, targets: Tensor) -> float:
    """One forward and backward pass to its end on the device."""
    model.zero_grad(set_to_none=True)
    loss = run(tokens, targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    if tokens.is_cuda:
        torch.cuda.synchronize()
    return float(loss.detach())


def header(tiny: bool) -> str:
    size = TINY if tiny else Size()
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return (
        f"{place}, torch {torch.__version__}, bfloat16, {size.layers} blocks of {size.hidden}, "
        f"{size.sequences} × {size.tokens} tokens, {size.vocabulary} classes\n\n"
        "| way | ms | quartiles | steps | peak GiB | loss | gradient norm | first step, s |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|"
    )


def line(way: str, row: dict[str, Any]) -> str:
    """Format a result, or the reason why there is none."""
    if "quartiles_ms" not in row:
        problem = (
            row.get("problem") or f"the time ended {'after' if 'first_step_s' in row else 'within'} its first step"
        )
        return f"| {way} | {problem} | | | | | | {row.get('first_step_s', '')} |"
    low, middle, high = row["quartiles_ms"]
    peak = "not measured" if row.get("peak_bytes") is None else f"{row['peak_bytes'] / 2**30:.2f}"
    norm = f"{row['gradient_norm']:.5f}" if "gradient_norm" in row else ""
    return (
        f"| {way} | {middle:.1f} | {low:.1f}–{high:.1f} | {row['steps']} | {peak} | {row['loss']:.5f} | {norm} "
        f"| {row['first_step_s']} |"
    )


if __name__ == "__main__":
    sys.exit(main())
