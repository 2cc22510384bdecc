"""The benchmark of data-parallel plans, on two ranks of a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_configuration_is_timed_beside_the_default(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "ddp_buckets.py"), str(tmp_path), "--tiny"]
    done = subprocess.run(
        [*command, "--seconds", "2", "--parts", "fsdp"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "ddp_buckets.json").read_text())
    assert results["ranks"] == 2
    first, *others = results["fsdp"]
    assert (first["name"], first["speedup"]) == ("fully_shard defaults", 1)
    assert len(others) == 5
    for row in others:
        assert row["ms"] > 0
        assert abs(row["speedup"] - first["ms"] / row["ms"]) < 1e-6
        assert row["name"] in done.stdout
