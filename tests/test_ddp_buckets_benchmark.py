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
        [*command, "--seconds", "4", "--parts", "ddp", "fsdp"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "ddp_buckets.json").read_text())
    assert results["ranks"] == 2
    names = {part: [row["name"] for row in results[part]] for part in ("ddp", "fsdp")}
    assert {"default (25 MB)", "compute alone (no_sync)", "1 MB", "400 MB"} <= set(names["ddp"])
    assert names["fsdp"][0] == "fully_shard defaults"
    for part in ("ddp", "fsdp"):
        first, *others = results[part]
        assert first["speedup"] == 1
        for row in others:
            assert row["ms"] > 0
            assert abs(row["speedup"] - first["ms"] / row["ms"]) < 1e-6
        assert all(row["name"] in done.stdout for row in results[part])
