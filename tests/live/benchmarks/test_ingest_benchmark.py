"""The traces that speed is measured on are real ones, repeated: nothing in them collides, nothing is lost."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from watching import LIMIT_S

from diagnose.measure import Measures
from diagnose.trace import Trace
from diagnose.trace.readers.kineto.torch_profiler import read

ROOT = Path(__file__).resolve().parents[3]
BASE = ROOT / "sample_traces" / "h200_expert_gpt" / "rank0" / "trace.json.gz"
COPIES = 3


def run(script: str, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=check)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "trace.json.gz"
    run("make_trace.py", BASE, path, "--copies", COPIES)
    return path


@pytest.fixture(scope="module")
def traces(made: Path) -> tuple[Trace, Trace]:
    return read(BASE)[0], read(made)[0]


def test_every_event_is_there_as_often_as_asked(traces: tuple[Trace, Trace]) -> None:
    base, large = traces
    for name in ("device", "calls", "ops", "frames", "ranges"):
        assert len(getattr(large, name)) == COPIES * len(getattr(base, name))
    assert large.warnings == base.warnings


def test_copies_follow_one_another_in_the_same_rhythm(traces: tuple[Trace, Trace]) -> None:
    base, large = traces
    count = len(base.device)
    second, third = large.device.start_ns[count : 2 * count], large.device.start_ns[2 * count :]
    assert len(np.unique(third - second)) == 1
    assert large.device.end_ns[:count].max() < second[0]
    lengths = np.tile(base.device.end_ns - base.device.start_ns, COPIES)
    np.testing.assert_array_equal(large.device.end_ns - large.device.start_ns, lengths)


def test_ids_still_join_what_they_joined_and_nothing_else(traces: tuple[Trace, Trace]) -> None:
    base, large = traces
    for table, column in (("device", "correlation"), ("calls", "correlation"), ("ops", "external_id")):
        once, often = getattr(getattr(base, table), column), getattr(getattr(large, table), column)
        assert len(np.unique(often[often > 0])) == COPIES * len(np.unique(once[once > 0])) > 0
    assert Measures(large).launches.linked.sum() == COPIES * Measures(base).launches.linked.sum() > 0


def test_steps_are_numbered_on(traces: tuple[Trace, Trace]) -> None:
    steps = [{name for name in trace.names if name.startswith("ProfilerStep#")} for trace in traces]
    assert len(steps[1]) == COPIES * len(steps[0]) > 0


def test_the_layout_is_kept(made: Path) -> None:
    text, once = gzip.decompress(made.read_bytes()), gzip.decompress(BASE.read_bytes())
    assert text[:500] == once[:500]
    assert text[-30:] == once[-30:]
    assert text.count(b"\n") == pytest.approx(COPIES * once.count(b"\n"), rel=0.01)


def test_the_benchmark_runs_and_writes_what_it_prints(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    # So small a trace says nothing of speed: which exit code comes out is not looked at.
    done = run("ingest.py", "--megabytes", 4, "--rounds", 1, "--json", out, check=False)
    figures = json.loads(out.read_text())["summary"]
    assert set(figures) == {"diagnose", "one process", "json.loads"}
    assert figures["diagnose"]["diagnosed_s"] > figures["diagnose"]["read_s"] > 0
    assert 0 < figures["diagnose"]["bytes_per_event"] < 100
    assert "HTA is left out" in done.stdout
