"""Sharded training under a cap of memory: torch's default, plans of `diagnose`, and CPUOffloadPolicy.

The cap lies midway between the peak of `fully_shard`'s defaults and that of CPUOffloadPolicy, so that the one does not
run and the other does. Every way is a job of its own with the allocator limited to the cap: what runs out of memory
takes nobody with it. The plans are made from what the probe of a watched run measures of the default: which blocks to
compute again (`diagnose.memory`), and which share of the optimizer's state to keep on the host. A CPU has no allocator
to limit: there the jobs run without a cap, and the plan is half of the blocks and half of the state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_job import run_ranks

RANK = Path(__file__).resolve().with_name("fsdp_cap_rank.py")
WAYS = ("defaults", "CPUOffloadPolicy", "checkpoints", "state on the host")
START_S = 90
"""Beyond its share of the time, for imports, the building of the model and a first step."""
LIMIT_OF_A_CPU_S = 900
"""A CPU is shared."""


def capped(
    out: Path, ranks: int, end: float, *, tiny: bool, tell: Callable[[list[dict[str, Any]]], None] = lambda _: None
) -> object:
    """The rows of the table, the defaults without a cap first; words where those failed.

    After `end`, on the monotonic clock, no job takes more than one step; `tell` gets the rows so far.
    """
    jobs: list[tuple[str, bool]] = [("defaults", False), ("CPUOffloadPolicy", False)]
    jobs += [(way, True) for way in WAYS]
    plan: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for number, (way, is_capped) in enumerate(jobs):
        left = max(0.0, end - time.monotonic())
        found = _job(
            out, ranks, time.monotonic() + left / (len(jobs) - number), way, plan if is_capped else {}, tiny=tiny
        )
        if number < 2 and not isinstance(found, dict):
            return f"{way}: {found}"
        if isinstance(found, dict):
            plan |= found.pop("plan", {})
        if number == 1:
            peaks = [row["peak_bytes"] for row in (*rows, found) if isinstance(row, dict)]
            plan["cap_bytes"] = sum(peaks) // 2
        rows.append(_row(way, is_capped, found, plan, rows))
        tell(rows)
    return rows


def _row(
    way: str, is_capped: bool, found: object, plan: dict[str, Any], before: list[dict[str, Any]]
) -> dict[str, Any]:
    cap = plan.get("cap_bytes")
    where = "" if not is_capped else f" under {cap / 2**30:.2f} GiB" if cap else ", no cap on a CPU"
    row: dict[str, Any] = {"name": f"{way}{where}", "ms": None, "speedup": None, "note": str(found)}
    if isinstance(found, dict):
        against = before[1]["ms"] if len(before) > 1 else found["ms"]
        row |= {"ms": found["ms"], "speedup": against / found["ms"], **found}
        row["note"] = f"peak {found['peak_bytes'] / 2**30:.2f} GiB; {found['said']}"
    return row


def _job(out: Path, ranks: int, until: float, way: str, plan: dict[str, Any], *, tiny: bool) -> object:
    """Run one way until a moment of the monotonic clock; returns its result, or the error's text where it failed."""
    name = f"cap-{way.replace(' ', '-')}{'-capped' if plan else ''}"
    target = out / f"{name}.json"
    target.unlink(missing_ok=True)
    words = [str(RANK), way, str(target), f"--until={until}", f"--plan={json.dumps(plan)}"]
    log, limit_s = out / f"{name}.log", LIMIT_OF_A_CPU_S if tiny else max(0.0, until - time.monotonic()) + START_S
    problem = run_ranks([*words, *(["--tiny"] if tiny else [])], ranks, log, limit_s)
    if target.exists():
        told: object = json.loads(target.read_text())
        return told
    return "out of memory" if "OutOfMemoryError" in log.read_text(errors="replace") else problem or "failed in silence"
