"""Measures how often a patch that changes nothing is kept: trials of a program against itself on a busy machine.

    python benchmarks/false_keeps.py OUTPUT.jsonl [--trials 200] [--per-control 10] [--minutes 60]

Each session tries a patch that adds a comment, again and again, and measures what the machine resolves where a verdict
hangs on it, as `diagnose fix` does. A trial counts as a false keep if its times alone would keep the patch: in
`diagnose fix` the mechanism and the numerics gate would have to agree as well, so the share found here is an upper
limit. Trials are those of `--quick`.
OUTPUT takes one line a trial; a run that is stopped leaves what it has. `--summary` prints a line for such a file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from diagnose.fixer import Fixer  # noqa: E402 - from this checkout
from diagnose.model import Decision, Gate  # noqa: E402
from diagnose.program import Program  # noqa: E402
from diagnose.trial.bench import Bench  # noqa: E402
from diagnose.trial.schedule import Deadline, Schedule  # noqa: E402

PROGRAM = '''"""A small model on the CPU, a few milliseconds a step."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x, y = torch.randn(128, 256), torch.randn(128, 1)
for step in range(1_000_000):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
'''
NO_OP = Fixer("no-op", lambda _request: None, Gate.BITWISE, "compute")
BAR = 0.05


def main() -> None:
    """Run trials, or sum up those of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--per-control", type=int, default=10, help="trials in a session")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no trial after this long")
    parser.add_argument("--summary", action="store_true", help="run nothing; sum up OUTPUT")
    options = parser.parse_args()
    if not options.summary:
        end_s = time.monotonic() + 60 * options.minutes
        with options.output.open("a") as output:
            for trial in trials(options.trials, options.per_control, end_s):
                output.write(json.dumps(trial) + "\n")
                output.flush()
    print(summary([json.loads(line) for line in options.output.read_text().splitlines()]))


def trials(count: int, per_control: int, end_s: float) -> Iterator[dict[str, object]]:
    """One record a trial, session after session, until there are `count` or the time is up."""
    done = 0
    while done < count and time.monotonic() < end_s:
        with tempfile.TemporaryDirectory() as folder:
            for record in session(Path(folder), min(per_control, count - done), end_s):
                done += 1
                yield record


def session(folder: Path, count: int, end_s: float) -> Iterator[dict[str, object]]:
    """`count` trials of the same program with another comment, and the controls that their verdicts ask for."""
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(PROGRAM)
    program = Program.parse(["train.py"], cwd=project)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with Bench(program, folder / "trials", Schedule.quick(), Deadline(), environment=environment) as bench:
        original = bench.copy({}, "original")
        bench.prepare(original)
        for number in range(count):
            if time.monotonic() >= end_s:
                return
            began_s = time.monotonic()
            patched = bench.copy({"train.py": PROGRAM + f"# {number}\n"}, f"patched-{number}")
            verdict = bench.leave_out(NO_OP, original, patched).verdict
            saving = verdict.saving
            yield {
                "decision": verdict.decision.value,
                "estimate": saving and saving.estimate,
                "low": saving and saving.low,
                "high": saving and saving.high,
                "resolution": verdict.resolution,
                "pairs": verdict.pairs,
                "seconds": time.monotonic() - began_s,
                "load": os.getloadavg()[0],
            }


def summary(records: list[dict[str, object]]) -> str:
    """The share of false keeps, with the upper end of its exact one-sided 95 % interval (Clopper and Pearson)."""
    kept = sum(record["decision"] == Decision.KEPT for record in records)
    slower = sum(record["decision"] == Decision.SLOWER for record in records)
    seconds = sum(float(str(record["seconds"])) for record in records)
    most = upper(kept, len(records))
    return (
        f"{len(records)} trials: {kept} false keeps (at most {most:.1%} with 95 % confidence; bar {BAR:.0%}), "
        f"{slower} false losses, {seconds / max(1, len(records)):.1f} s a trial"
    )


def upper(hits: int, count: int, doubt: float = 0.05) -> float:
    """The largest probability under which `hits` or fewer of `count` are not rarer than `doubt`."""
    low, high = (hits / count if count else 0.0), 1.0
    for _ in range(50):
        middle = (low + high) / 2
        tail = sum(math.comb(count, k) * middle**k * (1 - middle) ** (count - k) for k in range(hits + 1))
        low, high = (middle, high) if tail > doubt else (low, middle)
    return high


if __name__ == "__main__":
    main()
