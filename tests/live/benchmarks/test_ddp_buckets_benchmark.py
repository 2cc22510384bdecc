"""The benchmark of data-parallel plans, on two ranks of a CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from watching import LIMIT_S

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, part: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a part, and what was printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / "ddp_buckets.py"), str(folder), "--tiny", "--seconds", "0"]
    done = subprocess.run(
        [*command, "--parts", part, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "ddp_buckets.json").read_text())
    assert results["ranks"] == 2
    assert isinstance(results[part], list), results[part]
    assert results[part] == json.loads((folder / f"{part}.json").read_text())
    return results[part], done.stdout


def test_the_default_and_the_foremost_other_are_timed_whatever_the_time(tmp_path: Path) -> None:
    (first, plan, *others), printed = run(tmp_path, "fsdp-8")
    assert (first["name"], first["speedup"]) == ("fully_shard defaults", 1)
    assert (plan["name"], len(others)) == ("all three", 4)
    assert plan["ms"] > 0
    assert abs(plan["speedup"] - first["ms"] / plan["ms"]) < 1e-6
    assert f"all three {plan['ms']:.2f} against {first['ms']:.2f} ms" in printed
    for row in others:
        assert row["ms"] is None
        assert f"{row['name']:<44}no turn before the time was over" in printed


@pytest.mark.nightly
def test_what_is_exposed_stands_beside_what_any_buckets_leave(tmp_path: Path) -> None:
    (default,), printed = run(tmp_path, "ddp", "--only", "nothing else")
    assert default["ms"] > 0
    assert default["exposed_ms"] >= default["waiting_ms"] >= 0
    assert 0 <= default["least_ms"] <= default["tail_ms"]
    told = f"after the backward pass {default['tail_ms']:.2f} ms, any buckets leave {default['least_ms']:.2f} ms"
    assert told in printed


@pytest.mark.nightly
def test_a_request_to_end_takes_the_ranks_along(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ddp_buckets.py"), str(tmp_path), "--tiny", "--parts", "fsdp"]
    with subprocess.Popen([*command, "--seconds", "900"], stdout=subprocess.DEVNULL) as benchmark:
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "fsdp.json").exists() and time.monotonic() < deadline:
            os.sched_yield()
        started = psutil.Process(benchmark.pid).children(recursive=True)
        assert len(started) >= 3, "the launcher and its ranks"
        benchmark.terminate()
        _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
        assert not alive
        assert benchmark.wait(LIMIT_S) == 128 + signal.SIGTERM
