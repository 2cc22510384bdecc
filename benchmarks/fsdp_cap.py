"""Sharded training under a cap of memory: torch's default, plans of `diagnose`, and CPUOffloadPolicy.

The cap lies midway between the peak of `fully_shard`'s defaults and that of CPUOffloadPolicy, so that the one does not
run and the other does. Every way is a job of its own with the allocator limited to the cap: what runs out of memory
takes nobody with it. The plans are made from what the probe of a watched run measures of the default: which blocks to
compute again (`diagnose.memory`), and which share of the optimizer's state to keep on the host. A CPU has no allocator
to limit: there the jobs run without a cap, and the plan is half of the blocks and half of the state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = Path(__file__).resolve().with_name("fsdp_cap_rank.py")
WAYS = ("defaults", "CPUOffloadPolicy", "checkpoints", "state on the host")
START_S = 90
"""Beyond its share of the time, for imports and the building of the model."""
END_S = 60
"""torchrun itself waits half of it for ranks that do not end at once."""


def capped(out: Path, ranks: int, seconds: float, *, tiny: bool) -> object:
    """The rows of the table, the defaults without a cap first; words where those failed."""
    end = time.monotonic() + seconds
    jobs: list[tuple[str, bool]] = [("defaults", False), ("CPUOffloadPolicy", False)]
    jobs += [(way, True) for way in WAYS]
    plan: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for number, (way, is_capped) in enumerate(jobs):
        share = max(1.0, (end - time.monotonic()) / (len(jobs) - number))
        found = _job(out, ranks, share, way, plan if is_capped else {}, tiny=tiny)
        if number < 2 and not isinstance(found, dict):
            return f"{way}: {found}"
        if isinstance(found, dict):
            plan |= found.pop("plan", {})
        if number == 1:
            peaks = [row["peak_bytes"] for row in (*rows, found) if isinstance(row, dict)]
            plan["cap_bytes"] = sum(peaks) // 2
        rows.append(_row(way, is_capped, found, plan, rows))
    return rows


def _row(
    way: str, is_capped: bool, found: object, plan: dict[str, Any], before: list[dict[str, Any]]
) -> dict[str, Any]:
    cap = plan.get("cap_bytes")
    where = "" if not is_capped else f" under {cap / 2**30:.2f} GiB" if cap else ", no cap on a CPU"
    row: dict[str, Any] = {"name": f"{way}{where}", "ms": float("nan"), "speedup": 0.0, "note": str(found)}
    if isinstance(found, dict):
        against = before[1]["ms"] if len(before) > 1 else found["ms"]
        row |= {"ms": found["ms"], "speedup": against / found["ms"], **found}
        row["note"] = f"peak {found['peak_bytes'] / 2**30:.2f} GiB; {found['said']}"
    return row


def _job(out: Path, ranks: int, seconds: float, way: str, plan: dict[str, Any], *, tiny: bool) -> object:
    """What one way told; words where it failed."""
    name = f"cap-{way.replace(' ', '-')}{'-capped' if plan else ''}"
    target = out / f"{name}.json"
    target.unlink(missing_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(RANK)]
    command += [way, str(target), f"--seconds={seconds}", f"--plan={json.dumps(plan)}", *(["--tiny"] if tiny else [])]
    path = os.pathsep.join([str(RANK.parents[1]), os.environ.get("PYTHONPATH", "")])
    with (out / f"{name}.log").open("wb") as log:
        job = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log)
        try:
            code = job.wait(None if tiny else seconds + START_S)  # a CPU is shared
        except subprocess.TimeoutExpired:
            _end(job)
            return "ended by its time limit"
    if code or not target.exists():
        words = (out / f"{name}.log").read_text(errors="replace")
        return "out of memory" if "OutOfMemoryError" in words else f"failed: {words[-400:]}"
    told: object = json.loads(target.read_text())
    return told


def _end(job: subprocess.Popen[bytes]) -> None:
    """Have torchrun end its ranks, which would outlive it if it were killed."""
    job.terminate()
    try:
        job.wait(END_S)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()
