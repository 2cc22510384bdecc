"""Measures the cost of keeping an optimizer's state on the host, brought back by the step or before it.

    python benchmarks/offload_state.py --out OUT [--seconds 120] [--device cuda|cpu] [--tiny]

The transformer of `checkpoint_bench.py` with AdamW, all of whose state is kept away: as it is; with
`diagnose.kernels.offload_state(optimizer, ahead=True)`, whose copies begin in the backward pass; and without `ahead`,
where the step alone brings the state back. Each way has a model of its own, one after the other and then in reverse
order. A line for each: the median step with its quartiles, the peak, what was on its way back when the backward pass
ended, and whether the parameters are those of the program as it is, bit for bit.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import checkpoint_bench  # first: it sets what torch reads when it is imported
import torch
from checkpoint_bench import TINY, Bench

from diagnose.kernels import offload_state
from diagnose.units import format_bytes

WAYS = ("as it is", "back in the backward pass", "back with the step")
WARM_UP = 4
"""Steps: the state is made, goes away, and what a pass holds is learned."""
MOST = 40


def main() -> None:
    """Measure each way, there and back; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for offload_state.json")
    parser.add_argument("--seconds", type=float, default=120.0, help="end within this time, about")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a model that runs anywhere in seconds")
    args = parser.parse_args()
    shape = TINY if args.tiny else checkpoint_bench.Shape()
    rows: dict[str, dict[str, Any]] = {way: {"way": way, "times_ms": []} for way in WAYS}
    each_s = args.seconds / (2 * len(WAYS))
    for way in (*WAYS, *reversed(WAYS)):
        measure(rows[way], Bench(shape, args.device), each_s, 3 if args.tiny else MOST)
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    args.out.mkdir(parents=True, exist_ok=True)
    for row in rows.values():
        row |= {"same_parameters": row["bits"] == rows[WAYS[0]]["bits"]}
    (args.out / "offload_state.json").write_text(json.dumps(list(rows.values()), indent=1))
    print(torch.cuda.get_device_name() if args.device == "cuda" else "CPU: nothing moves there")
    for row in rows.values():
        print(line_of(row))


def measure(row: dict[str, Any], bench: Bench, seconds: float, most: int) -> None:
    """Add the steps of one way to its row."""
    begun = time.monotonic()
    optimizer = torch.optim.AdamW(bench.model.parameters(), lr=1e-4)
    bench.optimizer = optimizer  # type: ignore[assignment]
    early_bytes: list[int] = []
    if row["way"] != WAYS[0]:
        optimizer.register_step_pre_hook(lambda *_: early_bytes.append(states.on_way_bytes()))
        offload_state(optimizer, ahead=row["way"] == WAYS[1])
        states = list(optimizer._optimizer_step_pre_hooks.values())[-1].__self__  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    for _ in range(WARM_UP):
        bench.step()
    torch.use_deterministic_algorithms(False)
    row["bits"] = [int(part.detach().view(torch.int32).sum(dtype=torch.int64)) for part in bench.model.parameters()]
    bench.settle()
    if bench.on_device:
        torch.cuda.reset_peak_memory_stats()
    seen: list[float] = []
    while len(seen) < 3 or (len(seen) < most and time.monotonic() - begun < seconds):
        before = time.perf_counter()
        bench.step()
        bench.settle()
        seen.append(1000 * (time.perf_counter() - before))
    row["times_ms"] += seen
    row |= {"peak_bytes": torch.cuda.max_memory_allocated() if bench.on_device else None}
    row |= {"early_bytes": max(early_bytes, default=0)}


def line_of(row: dict[str, Any]) -> str:
    """One way, for people."""
    low, middle, high = quantiles(row["times_ms"], n=4)
    peak = "not measured" if row["peak_bytes"] is None else format_bytes(row["peak_bytes"])
    early = format_bytes(row["early_bytes"])
    same = "parameters bitwise equal" if row["same_parameters"] else "PARAMETERS DIFFER"
    times = f"{middle:7.1f} ms [{low:.1f}, {high:.1f}] of {len(row['times_ms'])} steps"
    return f"{row['way']:26} {times}  peak {peak}  back before the step {early}  {same}"


if __name__ == "__main__":
    main()
