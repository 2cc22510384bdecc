"""The programs of the libraries as their benchmark writes them, and its table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
KEPT: dict[str, Any] = {
    "verdicts": [
        {
            "fixer": "loader-workers",
            "decision": "kept",
            "setting": {"num_workers": 2},
            "gate": {"gate": "bitwise", "passed": True},
        }
    ],
    "final": {"original_ns": 831_000_000, "patched_ns": 335_000_000},
}


@pytest.fixture(scope="module")
def frameworks() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("frameworks", FOLDER / "frameworks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["frameworks"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["frameworks"]


def test_samples_of_every_program_take_their_time(frameworks: ModuleType, tmp_path: Path) -> None:
    for library, (name, _, changes) in frameworks.CASES.items():
        text = (frameworks.written(tmp_path / library, name, changes) / "train.py").read_text()
        compile(text, name, "exec")
        assert text.count(".sleep(0.05)") == 1, library


def test_a_row_says_what_was_kept_and_whether_the_numbers_stayed(frameworks: ModuleType) -> None:
    row = frameworks.row("lightning", KEPT)
    assert row.split(maxsplit=3)[:3] == ["lightning", "kept", "num_workers=2"]
    assert "831 → 335 ms" in row and row.endswith("same, bitwise")


def test_what_did_not_come_to_a_verdict_is_said(frameworks: ModuleType) -> None:
    assert frameworks.row("x", {"verdicts": [], "final": None, "failed": 3}).endswith("nothing was tried: exit code 3")
    untold = {"verdicts": [{**KEPT["verdicts"][0], "decision": "not tried", "gate": None}], "final": None}
    assert frameworks.row("x", untold).split() == ["x", "not", "tried", "num_workers=2", "–", "–"]
