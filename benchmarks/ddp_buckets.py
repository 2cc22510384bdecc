"""Data-parallel training under the plans of `diagnose`, beside torch's defaults and a sweep over bucket sizes.

    python benchmarks/ddp_buckets.py OUT --seconds 170
    python benchmarks/ddp_buckets.py OUT --tiny          # two ranks on a CPU, for tests

A GPT of 355 M parameters with DistributedDataParallel, over what connects the devices and over loopback sockets as a
slow network, and one of 1.3 B with `fully_shard` and gradients accumulated over 4 micro-steps; that one also under a
cap of memory in which it does not run as it is (`fsdp_cap.py`). Every configuration runs in turns within one job, there
and back, so that drift cancels; under the cap each has a job of its own. The median step of the slowest rank counts,
with its quartiles.
The plan of buckets is the one that `diagnose` makes from a profile of the default (`diagnose.measure.bucket_plan`). Of
the default and of the plans, all ranks are recorded as well: what of their communication is exposed, and what any
buckets would leave exposed. The last lines are the tables; `OUT/ddp_buckets.json` holds all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from fsdp_cap import capped  # noqa: E402 - found by the line above

from diagnose.trial.last_words import of_the_program  # noqa: E402 - found by the line above

SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
PARTS = ("ddp", "ddp-sockets", "fsdp", "cap")
START_S = 120
"""Beyond its share of the time, for imports and the last turns: a part that hangs must not take the others with it."""
SHARES = {"ddp": 0.2, "ddp-sockets": 0.3, "fsdp": 0.2, "cap": 0.3}
"""Of the time: a step over sockets is eight times as long."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--ranks", type=int, help="default: one for each device, 4 at most")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART_OF_NAME", help="beside the default, these alone")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ranks = args.ranks or (2 if args.tiny else min(4, _devices()))
    if ranks < 2:
        sys.exit("two devices at least, or --tiny")
    end = time.monotonic() + args.seconds
    results: dict[str, object] = {"ranks": ranks}
    for number, part in enumerate(args.parts):
        left = end - time.monotonic()
        share = SHARES[part] / sum(SHARES[later] for later in args.parts[number:])
        run = capped if part == "cap" else partial(_run, part, args.only)
        results[part] = run(args.out, ranks, left * share, tiny=args.tiny)
        (args.out / "ddp_buckets.json").write_text(json.dumps(results, indent=1))
    for part in args.parts:
        found = results[part]
        print(f"\n{part}, {ranks} ranks" if isinstance(found, list) else f"\n{part}: {found}")
        for row in found if isinstance(found, list) else ():
            low, high = row.get("quartiles_ms", (row["ms"], row["ms"]))
            spread = f"[{low:.2f}, {high:.2f}]" if low < high else ""
            print(f"  {row['name']:<44}{row['ms']:>9.2f} ms {spread:<20}{row['speedup']:>6.3f} x   {row['note']}")
        for row in found if isinstance(found, list) else ():
            if "exposed_ms" in row:
                print(f"  {row['name']:<44}{_exposed(row)}")


def _exposed(row: dict[str, float | None]) -> str:
    """What a recording of all ranks says, beside the bound."""
    waiting, least = ("unknown" if row[name] is None else f"{row[name]:.2f} ms" for name in ("waiting_ms", "least_ms"))
    return f"exposed {row['exposed_ms']:.2f} ms, of it waiting {waiting}; any buckets leave {least}"


def _devices() -> int:
    import torch

    return int(torch.cuda.device_count())


def _run(part: str, only: list[str], out: Path, ranks: int, seconds: float, *, tiny: bool) -> object:
    """The rows of one part; words where it failed."""
    target = out / f"{part}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(HERE.with_name("ddp_buckets_rank.py")), part, str(target), f"--seconds={seconds}"]
    variables = {**os.environ, **(SOCKETS if part == "ddp-sockets" else {})}
    variables["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    with (out / f"{part}.log").open("wb") as log:
        try:
            done = subprocess.run(
                [*command, *(["--tiny"] if tiny else []), *(["--only", *only] if only else [])],
                env=variables,
                stdout=log,
                stderr=log,
                timeout=None if tiny else seconds + START_S,  # a CPU is shared
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "ended by its time limit"
    if done.returncode or not target.exists():
        words = of_the_program((out / f"{part}.log").read_text(errors="replace"))
        return f"failed: {words[-600:]}"
    rows: object = json.loads(target.read_text())
    return rows


if __name__ == "__main__":
    main()
