"""Sharded training under a cap of memory: how the cap is chosen and told, and ways that run on two ranks of a CPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
GIB = 1 << 30


@pytest.fixture(scope="module")
def cap() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fsdp_cap", FOLDER / "fsdp_cap.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fsdp_cap"] = module
    sys.path.insert(0, str(FOLDER))
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))
    del sys.modules["fsdp_cap"]


def test_the_cap_lies_between_the_two_and_what_does_not_run_is_told(
    cap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, object]] = []
    told: list[list[dict[str, Any]]] = []

    def job(_out: Path, _ranks: int, _until: float, way: str, plan: dict[str, Any], **_tiny: bool) -> object:
        given.append((way, plan.get("cap_bytes")))
        if way == "defaults" and plan:
            return "out of memory"
        peak = 20 if way == "defaults" else 8
        found = {"ms": 300.0 if way == "CPUOffloadPolicy" else 100.0, "peak_bytes": peak * GIB, "said": "so"}
        return found | ({"plan": {"sites": []}} if way == "defaults" else {})

    monkeypatch.setattr(cap, "_job", job)
    rows = cap.capped(tmp_path, 2, 10.0, tiny=False, tell=told.append)
    assert len(told) == len(rows) > 0, "every row is told when it is known"
    assert given[:2] == [("defaults", None), ("CPUOffloadPolicy", None)]
    assert {size for _, size in given[2:]} == {14 * GIB}
    assert [(row["name"], row["note"]) for row in rows[2:3]] == [("defaults under 14.00 GiB", "out of memory")]
    assert [row["speedup"] for row in rows[3:]] == [1, 3, 3]  # of CPUOffloadPolicy


def test_without_a_default_that_runs_there_is_no_table(
    cap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap, "_job", lambda *_args, **_named: "failed: no")
    assert cap.capped(tmp_path, 2, 10.0, tiny=False) == "defaults: failed: no"


@pytest.mark.slow
@pytest.mark.nightly
def test_plans_change_no_loss_of_the_sharded_model(cap: ModuleType, tmp_path: Path) -> None:
    jobs: list[tuple[str, dict[str, Any]]] = [("defaults", {}), ("checkpoints", {"sites": []})]
    found = [cap._job(tmp_path, 2, 0.0, way, plan, tiny=True) for way, plan in jobs]
    assert all(isinstance(one, dict) for one in found), found
    assert found[0]["losses"] == found[1]["losses"]
    assert found[1]["said"] == "1 blocks computed again"
