"""Times programs that start at once: the gain of starting early what a trial needs later.

    python benchmarks/starts.py OUT [--seconds 240] [--tiny]

For 1, 2, 4, 8, 16 and 24 processes of one small program: from the start of the first until the last has taken its first
step, and all of them one after the other for comparison (the first row times their number). OUT takes starts.json. On
a device each makes a context of its own, as in a trial. `--tiny` stops at 2 processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

COUNTS = (1, 2, 4, 8, 16, 24)
PROGRAM = """
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)
model = torch.nn.Linear(1024, 1024, device=device)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(64, 1024, device=device)).sum().backward()
optimizer.step()
if device == "cuda":
    torch.cuda.synchronize()
print(device, flush=True)
"""


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240, help="begin nothing after this long")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + options.seconds
    at_once(1)  # what is read from disk for the first time
    rows: list[dict[str, float]] = []
    for count in COUNTS[: 2 if options.tiny else None]:
        if time.monotonic() >= end_s:
            break
        rows.append({"processes": count, "seconds": at_once(count)})
        (options.out / "starts.json").write_text(json.dumps({"cores": len(os.sched_getaffinity(0)), "rows": rows}))
    print(table(rows))


def at_once(count: int) -> float:
    """Seconds until the last of so many processes has taken its first step. Raises RuntimeError if one fails."""
    began_s = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.DEVNULL) for _ in range(count)]
    failed = [process.args for process in running if process.wait() != 0]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} processes failed")
    return time.monotonic() - began_s


def table(rows: list[dict[str, float]]) -> str:
    """A row for each number of processes."""
    one_s = rows[0]["seconds"] if rows else 0.0
    lines = [f"{os.cpu_count()} cores", "processes  at once  one by one"]
    lines += [f"{row['processes']:9.0f}  {row['seconds']:5.1f} s  {row['processes'] * one_s:8.1f} s" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
