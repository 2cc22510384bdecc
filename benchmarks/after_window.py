"""Measures what a profiler window leaves behind: steps before it and after it, of programs bound by the host or not.

    python benchmarks/after_window.py [--device cuda] [--processes 4]

torch.profiler leaves CUPTI attached when it stops, unless `TEARDOWN_CUPTI=1` is set, so that each launch still goes
through it (https://github.com/pytorch/pytorch/issues/144455). Processes with and without the variable alternate; in
each, the window is the one that `diagnose run` opens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

STEPS = 200
"""Steps on either side of the window."""
WARM_UP = 40
PROGRAMS = {"host-bound": (120, 64, 64), "device-bound": (12, 4096, 8192)}
"""Layers, width and batch."""


def main() -> None:
    """Print a row for each program and setting; or, as a child, train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=4, help="of each program and setting")
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(options.device, *PROGRAMS[options.child])))
        return
    print(f"{'program':<14}{'TEARDOWN_CUPTI':>16}{'before':>12}{'after':>12}{'longer by':>28}")
    for program in PROGRAMS:
        found: dict[str, list[tuple[float, float]]] = {"": [], "1": []}
        for _ in range(options.processes):
            for setting, sides in found.items():
                sides.append(run_child(options.device, program, setting))
        for setting, sides in found.items():
            before_ms, after_ms = (statistics.median(side) for side in zip(*sides, strict=True))
            longer = sorted(after / before - 1 for before, after in sides)
            said = f"{statistics.median(longer):+.1%} ({longer[0]:+.1%} … {longer[-1]:+.1%})"
            print(f"{program:<14}{setting or 'not set':>16}{before_ms:>9.2f} ms{after_ms:>9.2f} ms{said:>28}")


def run_child(device: str, program: str, setting: str) -> tuple[float, float]:
    """Return the median step before and after the window of a process of its own, in ms."""
    variables = {name: value for name, value in os.environ.items() if name != "TEARDOWN_CUPTI"}
    variables |= {"TEARDOWN_CUPTI": setting} if setting else {}
    command = [sys.executable, __file__, "--device", device, "--child", program]
    said = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
    before_ms, after_ms = json.loads(said.splitlines()[-1])
    return before_ms, after_ms


def train(device: str, layers: int, width: int, batch: int) -> tuple[float, float]:
    """Train a chain of layers, with a window in the middle; the median step before and after it, in ms."""
    import torch

    from diagnose.collect.inside.window.profiler_window import Window

    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.randn(batch, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def timed(count: int) -> float:
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            step()
            synchronize()
            taken.append(1e3 * (time.perf_counter() - began))
        return statistics.median(taken)

    synchronize: Any = torch.cuda.synchronize if device == "cuda" else lambda: None
    timed(WARM_UP)
    before_ms = timed(STEPS)
    window = Window()
    window.open(torch)
    for number in range(4):
        window.mark_step(number)
        step()
    window.stop()
    timed(WARM_UP)
    return before_ms, timed(STEPS)


if __name__ == "__main__":
    main()
