"""benchmarks/starts.py, with programs that do nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import starts


def test_it_writes_and_prints_a_row_for_each_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(starts, "PROGRAM", "pass")
    monkeypatch.setattr(sys, "argv", ["starts.py", str(tmp_path), "--tiny"])
    starts.main()
    written = json.loads((tmp_path / "starts.json").read_text())
    assert [row["processes"] for row in written["rows"]] == [1, 2]
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_process_that_fails_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "PROGRAM", "raise SystemExit(1)")
    with pytest.raises(RuntimeError, match="2 of 2"):
        starts.at_once(2)
