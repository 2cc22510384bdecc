"""Measures what profiler windows leave behind: steps before the first one and after each.

    python benchmarks/after_window.py [--device cuda] [--processes 4] [--programs host-bound]

torch.profiler leaves CUPTI attached when it stops, unless `TEARDOWN_CUPTI=1` is set, so that each launch still goes
through it (https://github.com/pytorch/pytorch/issues/144455). Processes with each setting alternate: the variable not
set, set as the process starts, set for good by the process right before its first window stops, and set around each
stop alone. In each, the windows are those that `diagnose run` opens, and each must have recorded as many kernels as
the others. On a device one program replays a CUDA graph, and captures another one after each window.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM_UP = 40
WINDOWS = 2
TRACED_STEPS = 4
PROGRAMS = {"host-bound": (120, 64, 64), "device-bound": (12, 4096, 8192), "cuda-graph": (120, 64, 64)}
"""Layers, width and batch."""
VARIABLE = "TEARDOWN_CUPTI"
SETTINGS = ("not set", "from the start", "from the first stop", "around each stop")


def main() -> None:
    """Print a row for each program and setting; or, as a child, train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=4, help="of each program and setting")
    parser.add_argument("--steps", type=int, default=200, help="on either side of a window")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        program, setting = options.child
        print(json.dumps(train(options.device, program, setting, options.steps)))
        return
    print(f"{'program':<14}{VARIABLE:>22}{'before':>12}{'after':>12}{'longer by':>28}{'kernels a window':>20}")
    for program in options.programs:
        if program == "cuda-graph" and options.device != "cuda":
            continue
        found: dict[str, list[dict[str, Any]]] = {setting: [] for setting in SETTINGS}
        for _ in range(options.processes):
            for setting, processes in found.items():
                processes.append(run_child(options.device, program, setting, options.steps))
        for setting, processes in found.items():
            print(row(program, setting, processes), flush=True)


def row(program: str, setting: str, processes: list[dict[str, Any]]) -> str:
    """Return the line of one program and setting: medians over its processes, after the last window."""
    failed = [process["failed"] for process in processes if "failed" in process]
    if failed:
        return f"{program:<14}{setting:>22}  failed in {len(failed)} of {len(processes)}: {failed[0]}"
    before_ms = statistics.median(process["steps_ms"][0] for process in processes)
    after_ms = statistics.median(process["steps_ms"][-1] for process in processes)
    longer = sorted(process["steps_ms"][-1] / process["steps_ms"][0] - 1 for process in processes)
    said = f"{statistics.median(longer):+.1%} ({longer[0]:+.1%} … {longer[-1]:+.1%})"
    kernels = sorted({tuple(process["kernels"]) for process in processes})
    return f"{program:<14}{setting:>22}{before_ms:>9.2f} ms{after_ms:>9.2f} ms{said:>28}  {kernels}"


def run_child(device: str, program: str, setting: str, steps: int) -> dict[str, Any]:
    """Return what a process of its own found, or how it failed."""
    variables = {name: value for name, value in os.environ.items() if name != VARIABLE}
    variables |= {VARIABLE: "1"} if setting == "from the start" else {}
    command = [sys.executable, __file__, "--device", device, "--steps", str(steps), "--child", program, setting]
    ended = subprocess.run(command, env=variables, check=False, capture_output=True, text=True)
    if ended.returncode:
        return {"failed": f"exit code {ended.returncode}; {ended.stderr.strip()[-300:]}"}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def train(device: str, program: str, setting: str, steps: int) -> dict[str, Any]:
    """Train a chain of layers with windows between: the median step before them and after each (ms), and the kernels
    that each window recorded.
    """
    import torch

    from diagnose.collect.inside.window.profiler_window import Window

    layers, width, batch = PROGRAMS[program]
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    x = torch.randn(batch, width, device=device)
    synchronize: Any = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def captured() -> Callable[[], None]:
        if program != "cuda-graph":
            return step
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay: Callable[[], None] = graph.replay
        return replay

    def timed(once: Callable[[], None], count: int) -> float:
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            once()
            synchronize()
            taken.append(1e3 * (time.perf_counter() - began))
        return statistics.median(taken)

    once = captured()
    timed(once, WARM_UP)
    steps_ms = [timed(once, steps)]
    kernels: list[int] = []
    for _ in range(WINDOWS):
        window = Window()
        window.open(torch)
        for number in range(TRACED_STEPS):
            window.mark_step(number)
            once()
        if setting in SETTINGS[2:]:
            os.environ[VARIABLE] = "1"
        window.stop()
        if setting == "around each stop":
            del os.environ[VARIABLE]
        kernels.append(count_kernels(window))
        timed(once, WARM_UP)
        steps_ms.append(timed(once, steps))
        timed(captured(), WARM_UP)
    return {"steps_ms": steps_ms, "kernels": kernels}


def count_kernels(window: Any) -> int:
    """Save what a stopped window recorded and count its kernels."""
    import gzip

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        window.save(path)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sum(event.get("cat") == "kernel" for event in events)


if __name__ == "__main__":
    main()
