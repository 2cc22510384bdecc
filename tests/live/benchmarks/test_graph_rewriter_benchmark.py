"""Figures of a way are written down when they are there: what cuts the benchmark short leaves what was measured."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from watching import LIMIT_S

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "graph_rewriter.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("graph_rewriter", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "graph_rewriter", module)  # where dataclasses look for their module
        spec.loader.exec_module(module)
        yield module


def test_what_compiles_has_its_turn_first(bench: ModuleType) -> None:
    assert list(bench.WAYS)[:2] == ["compiled", "compiled-diagnose"]


def test_each_figure_is_there_as_soon_as_it_is_noted(bench: ModuleType, tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    bench.note(figures, "compiled", {"begun": True})
    assert "within its first step" in bench.line("compiled", bench.read(figures)["compiled"])
    bench.note(figures, "compiled", {"first_step_s": 71.5, "loss": 11.9})
    cut = bench.line("compiled", bench.read(figures)["compiled"])
    assert "after its first step" in cut and "71.5" in cut
    bench.note(figures, "compiled", {"quartiles_ms": [1.0, 2.0, 3.0], "steps": 5})
    assert "| 2.0 | 1.0–3.0 | 5 |" in bench.line("compiled", bench.read(figures)["compiled"])


def test_a_way_that_takes_the_process_with_it_costs_itself_alone(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def child(ways: Sequence[str], _tiny: bool, out: Path, _seconds: float) -> str:
        asked.append(list(ways))
        for way in ways:
            if way == "compiled-diagnose":
                return "Segmentation fault"
            bench.note(out / "graph_rewriter.jsonl", way, {"done": True})
        return ""

    (tmp_path / "graph_rewriter.jsonl").write_text("")
    monkeypatch.setattr(bench, "in_a_child", child)
    rows = bench.in_children(["compiled", "compiled-diagnose", "eager"], True, tmp_path, time.monotonic() + 1000)
    assert asked == [["compiled", "compiled-diagnose", "eager"], ["eager"]]
    assert rows["compiled-diagnose"] == {"problem": "Segmentation fault"}
    assert rows["compiled"]["done"] and rows["eager"]["done"]


def test_ways_that_had_no_time_say_so(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "graph_rewriter.jsonl").write_text("")
    rows = bench.in_children(["compiled", "eager"], True, tmp_path, time.monotonic() - 1)
    assert [row["problem"] for row in rows.values()] == ["no time left", "no time left"]


def test_a_child_that_is_cut_short_is_ended_and_what_it_noted_stays(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text(
        "import sys, threading\n"
        "out = sys.argv[sys.argv.index('--out') + 1]\n"
        'open(out + "/graph_rewriter.jsonl", "a").write(\'{"way": "compiled", "first_step_s": 3.0}\\n\')\n'
        "threading.Event().wait()\n"
    )
    (tmp_path / "graph_rewriter.jsonl").write_text("")
    monkeypatch.setattr(bench, "__file__", str(endless))
    wait = subprocess.Popen.wait

    def noted(child: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        """As if the time were over when the child has written."""
        while timeout is not None and not (tmp_path / "graph_rewriter.jsonl").read_text().endswith("\n"):
            assert child.poll() is None
        if timeout is not None:
            raise subprocess.TimeoutExpired("endless", timeout)
        return wait(child)

    monkeypatch.setattr(subprocess.Popen, "wait", noted)
    rows = bench.in_children(["compiled", "eager"], True, tmp_path, time.monotonic() + 1000)
    assert rows["compiled"]["first_step_s"] == 3.0
    assert rows["eager"] == {"problem": "no time left"}


@pytest.mark.nightly
def test_at_toy_size_two_ways_share_a_process_and_a_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(SCRIPT), "eager", "eager-diagnose", "--tiny", "--seconds", str(LIMIT_S)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "graph_rewriter.md").read_text()
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| eager")]
    assert [row[1].strip() for row in rows] == ["eager", "eager-diagnose"]
    assert rows[0][6] == rows[1][6] != " ", "one model and one batch: one loss"
    assert "graph 1 (cpu, the rest by eager)" in table
