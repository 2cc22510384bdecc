"""Measures the overhead of watching: a small training step, watched and not, outside the profiler window.

    python benchmarks/overhead.py [--device cuda] [--pairs 60] [--processes 4] [--mode heartbeat]

Two measurements. *Within* one process the watcher is switched on and off from block to block, in ABBA order, so that
neighbours and clocks cancel: this is the cost of what happens at every step (hooks, log, sampler). *Across* processes,
watched and unwatched runs alternate: this has everything in it, and the machine's noise. `--mode heartbeat` measures
`diagnose watch` in the place of `diagnose run`, and the memory and the processor time that it takes beside the program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET_STEP_S = 0.020
BLOCK = 10
BLOCKS_ACROSS = 20
WARM_UP = 80
"""Steps before anything is measured; the profiler window lies within them."""


def main() -> None:
    """Measure and print a table; or, as a child, train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks within one process")
    parser.add_argument("--processes", type=int, default=4, help="pairs of processes")
    parser.add_argument("--mode", choices=["watch", "heartbeat"], default="watch", help="what runs in the process")
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="`processor`: what all threads of the process take, which a busy machine changes less",
    )
    parser.add_argument("--seconds", type=int, default=120, help="of the run beside which memory is measured")
    parser.add_argument("--child", choices=["within", "across", "long"], help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=0, help="layers (0: as many as make a step of 20 ms)")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.out.write_text(json.dumps(train(options)))
        return
    size = options.size or run_child(options, "across", watched=False, size=0)["size"]
    within = run_child(options, "within", watched=True, size=size)
    across = [alternate(options, size, watched_first=bool(number % 2)) for number in range(options.processes)]
    print(f"{'':<18}{'step':>12}{'overhead':>12}{'95 % interval':>22}   n")
    report("within a process", within["off"], within["on"])
    if across:
        report("across processes", [off for off, _ in across], [on for _, on in across])
    if options.mode == "heartbeat":
        beside(options, size)


def beside(options: argparse.Namespace, size: int) -> None:
    """Run the child under `diagnose watch`, and print what that process takes, and what the child holds with it."""
    import psutil

    words = [__file__, "--child", "long", "--device", options.device, "--size", str(size)]
    words += ["--seconds", str(options.seconds)]
    with tempfile.TemporaryDirectory() as name:
        held = {}
        for watched in (False, True):
            out = Path(name) / f"{watched}.json"
            command = [sys.executable, *(["-m", "diagnose", "watch"] if watched else []), *words, "--out", str(out)]
            path = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
            running = psutil.Popen(command, cwd=name, env=os.environ | path)
            begun, most, spent = time.monotonic(), 0, 0.0
            while running.poll() is None:
                with contextlib.suppress(psutil.Error):
                    most, spent = max(most, running.memory_info().rss), sum(running.cpu_times()[:2])
                time.sleep(0.5)
            held[watched] = json.loads(out.read_text())["resident_bytes"]
            seconds = time.monotonic() - begun
    print(f"beside it: {most / 2**20:.0f} MiB, {100 * spent / seconds:.2f} % of a core")
    print(f"within it: {(held[True] - held[False]) / 2**20:+.0f} MiB")


def report(name: str, off: Sequence[float], on: Sequence[float]) -> None:
    """One line of the table."""
    ratios = [math.log(one / other) for one, other in zip(on, off, strict=True)]
    resampled = random.Random(0)
    medians = sorted(statistics.median(resampled.choices(ratios, k=len(ratios))) for _ in range(4000))
    low, high = (100 * math.expm1(medians[round(share * (len(medians) - 1))]) for share in (0.025, 0.975))
    estimate = 100 * math.expm1(statistics.median(ratios))
    step = 1e3 * statistics.median(off)
    print(f"{name:<18}{step:>9.2f} ms{estimate:>+10.2f} %{f'[{low:+.2f}, {high:+.2f}] %':>22}{len(ratios):>4}")


def alternate(options: argparse.Namespace, size: int, watched_first: bool) -> tuple[float, float]:
    """Median steps of an unwatched and of a watched process."""
    steps = {
        watched: statistics.median(run_child(options, "across", watched, size)["steps"])
        for watched in (watched_first, not watched_first)
    }
    return steps[False], steps[True]


def run_child(options: argparse.Namespace, role: str, watched: bool, size: int) -> dict[str, Any]:
    """Train in a process of its own."""
    sys.path.insert(0, str(ROOT))
    from diagnose.collect import Recipe, environment

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = (
            environment(Recipe(mode=options.mode).to_json(folder / "run"), os.environ) if watched else dict(os.environ)
        )
        words = [sys.executable, __file__, "--child", role, "--device", options.device, "--pairs", str(options.pairs)]
        words += [
            "--mode",
            options.mode,
            "--clock",
            options.clock,
            "--size",
            str(size),
            "--out",
            str(folder / "out.json"),
        ]
        subprocess.run(words, env=variables, check=True, timeout=560)
        result: dict[str, Any] = json.loads((folder / "out.json").read_text())
        if watched and options.mode == "watch" and not (folder / "run" / "rank0" / "window.json").exists():
            raise SystemExit("the profiler window was not over when the measurement began")
    return result


def train(options: argparse.Namespace) -> dict[str, Any]:
    """The child: a stack of linear layers, fed by a loader, with as many layers as make a step of 20 ms."""
    import torch

    torch.manual_seed(0)
    if options.device == "cpu":
        torch.set_num_threads(1)
    size = options.size or calibrated(options.device)
    step, synchronize = workload(options.device, size)
    for _ in range(WARM_UP):
        step()
    synchronize()
    time.sleep(2)  # the trace is being written
    if options.child == "long":
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            step()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"resident_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
    if options.child == "within":
        [watch] = sys.modules[f"_diagnose_collect.inside.modes.{options.mode}"].running
        return measure_switching(step, synchronize, watch.set_enabled, options)
    steps = [measure(step, synchronize, options.clock) for _ in range(BLOCKS_ACROSS)]
    return {"size": size, "steps": steps}


def measure_switching(
    step: Callable[[], None],
    synchronize: Callable[[], None],
    switch: Callable[[bool], None],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Blocks with the watcher on and off, the order alternating."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(options.pairs):
        for enabled in (True, False) if pair % 2 else (False, True):
            switch(enabled)
            step()
            times[enabled].append(measure(step, synchronize, options.clock))
    switch(True)
    return {"on": times[True], "off": times[False]}


def measure(step: Callable[[], None], synchronize: Callable[[], None], clock: str = "wall") -> float:
    """Seconds a step, over a block."""
    synchronize()
    now = time.process_time if clock == "processor" else time.perf_counter
    begin = now()
    for _ in range(BLOCK):
        step()
    synchronize()
    return (now() - begin) / BLOCK


def calibrated(device: str) -> int:
    """Layers that make a step of about the wanted length; found by steps, as time grows faster than layers do."""
    layers = 16
    for _ in range(4):
        step, synchronize = workload(device, layers)
        for _ in range(3):
            step()
        seconds = measure(step, synchronize)
        layers = max(1, min(4 * layers, round(layers * TARGET_STEP_S / seconds)))
    return layers


def workload(device: str, layers: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A training step and what waits for it."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    width, batch = (256, 32) if device == "cpu" else (2048, 4096)
    blocks = [block for _ in range(layers) for block in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(TensorDataset(torch.randn(batch * 64, width)), batch_size=None, sampler=_Batches(batch))
    batches = iter(loader)

    def step() -> None:
        nonlocal batches
        try:
            (rows,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (rows,) = next(batches)
        loss = model(rows.to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, torch.cuda.synchronize if device != "cpu" else lambda: None


class _Batches:
    """Slices instead of single rows: the loader shall not be what is measured."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def __iter__(self) -> Any:
        return (slice(number * self._batch, (number + 1) * self._batch) for number in range(64))

    def __len__(self) -> int:
        return 64


if __name__ == "__main__":
    main()
