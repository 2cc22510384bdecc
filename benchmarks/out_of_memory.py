"""Checks the findings on programs that run out of memory on a real device against the programs' own figures.

    python benchmarks/out_of_memory.py --out OUT [--seconds 230]
    python benchmarks/out_of_memory.py --out OUT --tiny         # without a device: the error is raised by hand

Each program is a small transformer under a limit of its own (`set_per_process_memory_fraction`), run by `diagnose run`:

    steady       no limit: the peak by category against the program's own parameters, gradients and optimizer state
    activations  dies of activations in the forward pass of its first step
    logits       dies in the loss over a large vocabulary
    backward     dies within 3 % of its peak, wherever that is
    leak         keeps every step's outputs until nothing is left
    instants     no training: pieces are taken and given back at random, and the allocator's own totals noted after each
    cost         what noting costs a step of many small kernels: who holds what, and every event
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 100

PROGRAM = """
import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

kind, limit, sizes = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
batch, length, width, layers, vocabulary, steps = sizes
device = "cuda" if torch.cuda.is_available() else "cpu"
if limit and device == "cuda":
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        hidden = self.up(self.norm(x))
        hidden = F.gelu(hidden)
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def requested():
    return torch.cuda.memory_stats().get("requested_bytes.all.peak", 0) if device == "cuda" else 0


def tell(model, optimizer):
    size = lambda tensors: sum(one.numel() * one.element_size() for one in tensors)
    state = [value for kept in optimizer.state.values() for value in kept.values() if value.device.type == device]
    parameters = list(model.parameters())
    truth = {"parameters": size(parameters), "optimizer state": size(state), "peak": requested()}
    truth["gradients"] = size(one.grad for one in parameters if one.grad is not None)
    json.dump(truth, open(sys.argv[4], "w"))


def main():
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = []
    try:
        for step in range(steps):
            tokens = torch.randint(vocabulary, (batch, length), device=device)
            if step == 5 and device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            logits = model(tokens)
            loss = F.cross_entropy(logits.view(-1, vocabulary).float(), tokens.view(-1))
            loss.backward()
            if kind == "steady":
                tell(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            if kind == "leak":
                kept.append(logits)
            if limit and device == "cpu" and step == steps - 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if kind == "steady":
            tell(model, optimizer)
    except torch.OutOfMemoryError:
        tell(model, optimizer)
        raise


main()
"""

INSTANTS = """
import json, pickle, random, sys
import torch

torch.cuda.init()
torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=100_000)
held, totals, chosen = {}, [], random.Random(0)
for number in range(3000):
    if held and chosen.random() < 0.47:
        del held[chosen.choice(list(held))]
    else:
        held[number] = torch.empty(int(2 ** chosen.uniform(2, 25)), dtype=torch.uint8, device="cuda")
    if number % 700 == 699:
        torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    totals.append((stats["requested_bytes.all.current"], stats["reserved_bytes.all.current"]))
pickle.dump(torch.cuda.memory._snapshot(), open(sys.argv[1], "wb"))
json.dump(totals, open(sys.argv[2], "w"))
"""

COST = """
import json, sys, time
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*(layer for _ in range(48) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())))
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
x = torch.randn(64, 256, device=device)

def step():
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def timed(enabled, context):
    if device == "cuda":
        torch.cuda.memory._record_memory_history(enabled, context=context, stacks="python", max_entries=100_000)
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 10

for _ in range(10):
    step()
ways = {"nothing": (None, None), "state": ("state", "state"), "all": ("all", "alloc")}
times = {name: [] for name in ways}
for turn in range(int(sys.argv[2])):
    for name in (ways if turn % 2 else reversed(ways)):
        times[name].append(timed(*ways[name]))
before = torch.cuda.memory_stats()["allocation.all.allocated"] if device == "cuda" else 0
step()
after = torch.cuda.memory_stats()["allocation.all.allocated"] if device == "cuda" else 0
json.dump({"times": times, "allocations": after - before}, open(sys.argv[1], "w"))
"""

GB = 1 << 30
# batch, length, width, layers, vocabulary, steps
BIG = {
    "steady": (0, (16, 1024, 1024, 16, 8192, 40)),
    "activations": (10 * GB, (64, 1024, 1024, 16, 8192, 3)),
    "logits": (12 * GB, (8, 1024, 512, 2, 131072, 3)),
    "backward": (0.97, (16, 1024, 1024, 16, 8192, 40)),
    "leak": (16 * GB, (8, 1024, 512, 4, 32768, 400)),
}
TINY = {name: (limit, (2, 8, 16, 2, 64, 14)) for name, (limit, _) in BIG.items()}
EXPECTED = {
    "activations": ("activations", "F.gelu(hidden)", "self.up(self.norm(x))", "self.down(hidden)"),
    "logits": ("logits", "F.cross_entropy", "self.head(x)", "loss.backward()"),
    "backward": ("activations", "loss.backward()", "F.cross_entropy", "self.head(x)"),
    "leak": ("left by earlier steps", "kept.append(logits)", "F.cross_entropy", "self.head(x)", "loss.backward()"),
}
"""The category that holds most of what a program dies of, and texts of lines that may be named: where it dies, or why.

A loss over a large vocabulary needs its third copy of the logits, their gradient, in the backward pass."""


def main() -> None:
    """Run the cases that there is time for, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a machine without a device")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + options.seconds
    rows: list[tuple[str, ...]] = []
    peak = 0
    for name, (limit, sizes) in (TINY if options.tiny else BIG).items():
        if ends - time.monotonic() < 25:
            rows.append((name, "no time left"))
            continue
        bound = limit if limit == 0 or limit > 1 else int(limit * peak) or 1
        row, peak_here = trained(options.out, name, bound, sizes, min(LIMIT_S, ends - time.monotonic()))
        peak = peak_here if name == "steady" else peak
        rows.append(row)
    if not options.tiny:
        rows.append(instants(options.out))
    rows.append(cost(options.out, 1 if options.tiny else 10))
    table = "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, WIDTHS, strict=False)) for row in rows)
    print(table)
    (options.out / "table.txt").write_text(table + "\n")


WIDTHS = (12, 30, 44, 40, 40, 30)


def trained(out: Path, name: str, limit: float, sizes: Sequence[int], seconds: float) -> tuple[tuple[str, ...], int]:
    """One program under `diagnose run`: what was said of it against what it knew, and its own peak."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM.lstrip())
    words = ["train.py", name, str(limit), json.dumps(sizes), "truth.json"]
    begin = time.monotonic()
    ran = run([sys.executable, "-m", "diagnose", "run", "--plain", "--json", *words], folder, seconds)
    (folder / "diagnosis.json").write_text(ran.stdout)
    (folder / "log.txt").write_text(ran.stderr)
    for path in folder.glob(".diagnose/runs/*/rank0/memory.pickle"):
        shutil.copy(path, folder / "memory.pickle")
    for path in folder.glob(".diagnose/runs/*/rank0/facts.json"):
        failures = json.loads(path.read_text()).get("watcher_failures")
        (folder / "watcher_failures.json").write_text(json.dumps(failures))
    shutil.rmtree(folder / ".diagnose", ignore_errors=True)
    try:
        said, truth = json.loads(ran.stdout), json.loads((folder / "truth.json").read_text())
    except (ValueError, OSError) as error:
        return (name, f"failed: {error}", ran.stderr[-200:]), 0
    diagnosis = said.get("diagnosis") or said
    took = f"{time.monotonic() - begin:.0f} s"
    if name == "steady":
        return (name, *compared(diagnosis.get("memory"), truth), took), truth["peak"]
    return (name, *judged(name, diagnosis, truth), took), truth["peak"]


def compared(memory: Mapping[str, Any] | None, truth: Mapping[str, int]) -> tuple[str, ...]:
    """The categories of a steady step beside the program's own sums."""
    if memory is None:
        return ("no memory was recorded",)
    held = memory["categories"]
    known = [f"{name} {deviation(held.get(name, 0), truth[name])}" for name in ("parameters", "optimizer state")]
    rest = {name: f"{size / GB:.2f}" for name, size in held.items()}
    return f"peak {deviation(memory['held_bytes'], truth['peak'])}", ", ".join(known), str(rest)


def deviation(found: int, true: int) -> str:
    """A figure with how far it is from the truth."""
    return f"{found / GB:.3f} GiB ({100 * (found / true - 1):+.2f} %)" if true else f"{found / GB:.3f} GiB"


def judged(name: str, diagnosis: Mapping[str, Any], truth: Mapping[str, int]) -> tuple[str, ...]:
    """Return the first finding on a program that died, its line, and the memory's named holder."""
    category, *lines = EXPECTED[name]
    findings = diagnosis["findings"]
    nothing: dict[str, Any] = {"rule": "nothing", "where": [], "fixers": []}
    first = findings[0] if findings else nothing
    places = [f"{place['line']} {place['code']}" for place in first["where"]]
    right = bool(places) and any(line in places[0] for line in lines)
    memory = diagnosis.get("memory")
    categories: dict[str, int] = memory["categories"] if memory else {"unknown": 0}
    most = max(categories, key=lambda one: categories[one])
    held = deviation(memory["held_bytes"], truth["peak"]) if memory else "unknown"
    return (
        f"first: {first['rule']}",
        f"line {'right' if right else 'WRONG'}: {places[0][:30] if places else 'none'}",
        f"most: {most} {'as expected' if most == category else f'NOT {category}'}",
        f"held {held}",
        ", ".join(first["fixers"][:2]),
    )


def instants(out: Path) -> tuple[str, ...]:
    """The totals that follow from a history, against the allocator's own after each operation."""
    snapshot, totals = out / "instants.pickle", out / "instants.json"
    ran = run([sys.executable, "-c", INSTANTS, str(snapshot), str(totals)], out, 60)
    if ran.returncode:
        return "instants", "failed", ran.stderr[-300:]
    sys.path.insert(0, str(ROOT))
    from diagnose.measure.memory.allocations import pieces
    from diagnose.measure.memory.segment_layout import layout_at
    from diagnose.measure.memory.usage import main_memory
    from diagnose.trace.readers import open_traces
    from diagnose.trace.schema import MemoryAction

    (trace,) = open_traces([snapshot])
    device = main_memory(trace)
    held = pieces(trace, device)
    total = held.total()
    true = json.loads(totals.read_text())
    action = trace.memory.action[held.rows]
    ends = [at for at, one in enumerate(action.tolist()) if one in (MemoryAction.ALLOC, MemoryAction.FREE)]
    wrong = sum(int(total[at + 1]) != requested for at, (requested, _) in zip(ends, true, strict=False))
    checked = range(0, min(len(ends), len(true)), 25)
    layouts = [layout_at(trace, device, held, after_cache(action.tolist(), ends[at])) for at in checked]
    off = sum(one is None or one.reserved_bytes != true[at][1] for one, at in zip(layouts, checked, strict=True))
    return (
        "instants",
        f"{len(true)} operations, {len(ends)} events",
        f"held wrong at {wrong}",
        f"reserved wrong at {off} of {len(layouts)}",
    )


def after_cache(action: Sequence[int], place: int) -> int:
    """The place of an operation's last event: the program may have emptied the cache after it."""
    while place + 1 < len(action) and action[place + 1] == _SEGMENT_FREE:
        place += 1
    return place


_SEGMENT_FREE = 5


def cost(out: Path, turns: int) -> tuple[str, ...]:
    """Measure the time that noting allocations adds to a step."""
    path = out / "cost.json"
    ran = run([sys.executable, "-c", COST, str(path), str(turns)], out, 90)
    if ran.returncode:
        return "cost", "failed", ran.stderr[-300:]
    said = json.loads(path.read_text())
    middle = {name: sorted(times)[len(times) // 2] for name, times in said["times"].items()}
    more = {name: middle[name] - middle["nothing"] for name in ("state", "all")}
    each = {name: 1e6 * value / max(said["allocations"], 1) for name, value in more.items()}
    return (
        "cost",
        f"step {1e3 * middle['nothing']:.2f} ms, {said['allocations']} allocations",
        *(f"{name}: +{1e3 * more[name]:.3f} ms a step, {each[name]:.2f} µs each" for name in more),
    )


def run(words: Sequence[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """A child that cannot outlast its time."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        return subprocess.run(
            words, cwd=folder, env=variables, capture_output=True, text=True, timeout=max(seconds, 1), check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr or ""
        return subprocess.CompletedProcess(list(words), 124, "", textwrap.shorten(said, 300))


if __name__ == "__main__":
    main()
