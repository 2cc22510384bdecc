"""Data-parallel training by torch's defaults, beside a sweep over bucket sizes and what `diagnose` writes else.

    python benchmarks/ddp_buckets.py OUT --seconds 170
    python benchmarks/ddp_buckets.py OUT --tiny --seconds 60

A GPT of 355 M parameters with DistributedDataParallel, over what connects the devices and over loopback sockets as a
slow network, and one of 1.3 B with `fully_shard` and gradients accumulated over 4 and over 8 micro-steps; that one also
under a cap of memory in which it does not run as it is (`fsdp_cap.py`). Every configuration runs in turns within one
job, there and back, so that drift cancels; under the cap each has a job of its own. The median step of the slowest rank
counts, with its quartiles.
Of the default, all ranks are recorded as well: what of their communication is exposed, and what any buckets would leave
exposed. The last lines say which goals were met (`rank_goals.py`); `OUT/<part>.json` holds what is known of a part
after every turn, `OUT/ddp_buckets.json` all figures. Nothing begins after the time given; what had no turn until then
is told as that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from fsdp_cap import LIMIT_OF_A_CPU_S, capped  # noqa: E402 - found by the line above
from rank_goals import goals  # noqa: E402
from rank_job import leave_on_request, run_ranks  # noqa: E402

SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
START_S = 120
"""Beyond its share of the time, for a last turn: a part that hangs must not take the others with it."""
SHARES = {"ddp": 0.2, "ddp-sockets": 0.3, "fsdp": 0.1, "fsdp-8": 0.15, "cap": 0.25}
"""Of the time, by part: a step over sockets is eight times as long."""
Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=170, help="of all parts, their start included")
    parser.add_argument("--ranks", type=int, help="default: one for each device, 4 at most")
    parser.add_argument("--parts", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--only", nargs="+", default=[], metavar="PART_OF_NAME", help="beside the default, these alone")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()
    leave_on_request()
    args.out.mkdir(parents=True, exist_ok=True)
    ranks = args.ranks or (2 if args.tiny else min(4, _devices()))
    if ranks < 2:
        sys.exit("two devices at least, or --tiny")
    end = time.monotonic() + args.seconds
    results: dict[str, object] = {"ranks": ranks}
    for number, part in enumerate(args.parts):
        share = SHARES[part] / sum(SHARES[later] for later in args.parts[number:])
        until = time.monotonic() + max(0.0, end - time.monotonic()) * share
        found, problem = _part(part, args.only, args.out, ranks, until, tiny=args.tiny)
        results[part] = found if found is not None else problem
        if found is not None and problem is not None:
            results[f"{part}, cut off"] = problem
        (args.out / "ddp_buckets.json").write_text(json.dumps(results, indent=1))
        print("\n".join(["", *_table(part, ranks, found or [], problem)]), flush=True)
    print("\ngoals" + (", of tiny sizes on a CPU: no measure of anything" if args.tiny else ""))
    for part in args.parts:
        rows = results[part]
        for line in goals(part, rows) if isinstance(rows, list) else [f"not measured: {rows}"]:
            print(f"  {part}, {ranks} ranks: {line}")


def _part(part: str, only: list[str], out: Path, ranks: int, until: float, *, tiny: bool) -> tuple[Rows | None, Any]:
    """The rows of one part, and what cut it off; None for what is not there."""
    if part != "cap":
        return _in_turns(part, only, out, ranks, until, tiny=tiny)
    found = capped(out, ranks, until, tiny=tiny, tell=_kept(out / "cap.json"))
    return (found, None) if isinstance(found, list) else (None, found)


def _kept(path: Path) -> Callable[[Rows], None]:
    def tell(rows: Rows) -> None:
        path.write_text(json.dumps(rows))

    return tell


def _in_turns(
    part: str, only: list[str], out: Path, ranks: int, until: float, *, tiny: bool
) -> tuple[Rows | None, str | None]:
    target = out / f"{part}.json"
    target.unlink(missing_ok=True)
    words = [str(HERE.with_name("ddp_buckets_rank.py")), part, str(target), f"--until={until}"]
    words += [*(["--tiny"] if tiny else []), *(["--only", *only] if only else [])]
    limit_s = LIMIT_OF_A_CPU_S if tiny else max(0.0, until - time.monotonic()) + START_S
    problem = run_ranks(words, ranks, out / f"{part}.log", limit_s, SOCKETS if part == "ddp-sockets" else {})
    return (json.loads(target.read_text()) if target.exists() else None), problem


def _table(part: str, ranks: int, rows: Rows, problem: str | None) -> list[str]:
    lines = [f"{part}, {ranks} ranks" + (f": {problem}" if problem else "")]
    for row in rows:
        if row["ms"] is None:
            why = "no turn before the time was over" if "steps" in row else row["note"]
            lines.append(f"  {row['name']:<44}{why}")
            continue
        low, high = row.get("quartiles_ms", (row["ms"], row["ms"]))
        spread = f"[{low:.2f}, {high:.2f}]" if low < high else ""
        lines.append(
            f"  {row['name']:<44}{row['ms']:>9.2f} ms {spread:<20}{row['speedup'] or 0:>6.3f} x   {row['note']}"
        )
    return lines + [f"  {row['name']:<44}{_exposed(row)}" for row in rows if "exposed_ms" in row]


def _exposed(row: dict[str, float | None]) -> str:
    """Format the exposed communication of a recording of all ranks, beside the bound."""
    names = ("exposed_ms", "waiting_ms", "tail_ms", "least_ms")
    every, waiting, tail, least = ("unknown" if row[name] is None else f"{row[name]:.2f} ms" for name in names)
    return f"exposed {every}, of it waiting {waiting}; after the backward pass {tail}, any buckets leave {least}"


def _devices() -> int:
    import torch

    return int(torch.cuda.device_count())


if __name__ == "__main__":
    main()
