"""The benchmark of data-parallel plans, on two ranks of a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from watching import LIMIT_S

ROOT = Path(__file__).resolve().parent.parent


def run(folder: Path, part: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a part, and what was printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / "ddp_buckets.py"), str(folder), "--tiny", "--seconds", "2"]
    done = subprocess.run(
        [*command, "--parts", part, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "ddp_buckets.json").read_text())
    assert results["ranks"] == 2
    assert isinstance(results[part], list), results[part]
    return results[part], done.stdout


def test_every_configuration_is_timed_beside_the_default(tmp_path: Path) -> None:
    (first, *others), printed = run(tmp_path, "fsdp")
    assert (first["name"], first["speedup"]) == ("fully_shard defaults", 1)
    assert len(others) == 5
    for row in others:
        assert row["ms"] > 0
        assert abs(row["speedup"] - first["ms"] / row["ms"]) < 1e-6
        assert row["name"] in printed


def test_what_is_exposed_stands_beside_what_any_buckets_leave(tmp_path: Path) -> None:
    (default,), printed = run(tmp_path, "ddp", "--only", "nothing else")
    assert default["exposed_ms"] >= default["waiting_ms"] >= 0
    assert default["least_ms"] >= 0
    assert f"any buckets leave {default['least_ms']:.2f} ms" in printed
