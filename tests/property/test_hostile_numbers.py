"""Numbers, rows and sizes that no profiler writes: what is sound beside them is read, and nothing grows unbounded."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diagnose.cli import main
from diagnose.engine import diagnose
from diagnose.errors import DiagnoseError, InputError
from diagnose.plugins import load
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io import blocks
from diagnose.trace.readers.io.limits import at_most, without_limits
from diagnose.trace.readers.memory import memory_snapshot
from diagnose.trace.readers.telemetry import rank_records

HUGE: tuple[object, ...] = (
    1 << 63,
    -(1 << 63) - 1,
    10**400,
    1 << 62,
    (1 << 62) + 1,
    -1,
    0,
    1.5,
    "1",
    None,
    True,
    [],
    {},
)
LINES: dict[str, dict[str, object]] = {
    "steps.jsonl": {"t": 1_000, "b": 1, "w": 5},
    "ranges.jsonl": {"k": "input", "s": 100, "e": 200, "n": "next", "t": 9},
    "stacks.jsonl": {"i": 0, "f": [["train.py", 4, "step"]]},
    "samples.jsonl": {"t": [100], "s": [0]},
    "sites.jsonl": {"kind": "DataLoader", "file": "train.py", "line": 4, "arguments": {"num_workers": 0}},
    "syncs.jsonl": {"file": "train.py", "line": 4, "function": "step", "count": 3, "steps": 3},
    "counters.jsonl": {"t": 100, "d": 0, "v": {"gpu.utilization": 50}},
}
FACTS: dict[str, object] = {"rank": 0, "world_size": 1, "pid": 9, "device_memory_bytes": 1}


def run_folder(root: Path, lines: dict[str, list[dict[str, object]]], facts: dict[str, object]) -> Trace:
    rank = root / "rank0"
    rank.mkdir(exist_ok=True)
    for name, listed in lines.items():
        (rank / name).write_text("".join(json.dumps(line) + "\n" for line in listed))
    (rank / "facts.json").write_text(json.dumps(facts))
    (trace,) = open_traces([root])
    return trace


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(LINES)),
    values=st.lists(st.sampled_from(HUGE), min_size=4, max_size=4),
    rank=st.sampled_from(HUGE),
    memory=st.sampled_from(HUGE),
)
@example(name="steps.jsonl", values=[1_000, 1 << 31, 5, 0], rank=0, memory=1)
def test_a_record_of_a_run_with_odd_numbers_costs_only_itself(
    name: str, values: list[object], rank: object, memory: object, tmp_path: Path
) -> None:
    odd = dict(zip(LINES[name], values, strict=False))
    lines = {file: [line, odd, line] if file == name else [line, line] for file, line in LINES.items()}
    trace = run_folder(tmp_path, lines, {**FACTS, "rank": rank, "device_memory_bytes": memory})
    assert len(trace.step_log) >= 2
    assert len(trace.ranges) >= 2
    assert len(trace.samples) >= 2
    assert len(trace.counters) >= 2
    assert not [warning for warning in diagnose([trace], load()).warnings if "failed and was left out" in warning]


def test_a_line_without_end_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_records, "_LONGEST_LINE_BYTES", 200)
    endless = {"t": 1, "b": 1, "w": 5, "x": "x" * 5_000}
    trace = run_folder(tmp_path, {"steps.jsonl": [LINES["steps.jsonl"], endless, LINES["steps.jsonl"]]}, FACTS)
    assert len(trace.step_log) == 2
    assert "cannot be read" in trace.warnings[0]


GPU_TRACE = "Start (ns),Duration (ns),CorrId,Device,Strm,Name\n100,50,1,GPU (0),7,gemm\n"
NCU = (
    '"ID","Process ID","Kernel Name","Device","gpu__time_duration.sum"\n"","","","","ns"\n"0","9","gemm","0","1,024"\n'
)


@pytest.mark.parametrize(
    "text",
    [
        GPU_TRACE.replace("CorrId", "Name") + "1,1\n",
        GPU_TRACE.replace("CorrId,Device", "Name,Name") + "1,1,1\n,,,,,,,\n1,1,1,1\n",
        NCU.replace('"Device"', '"ID"') + '"1","9","gemm","0"\n"2"\n',
        NCU + '"ID","ID","ID"\n"1"\n"1","2"\n' + NCU,
    ],
    ids=["nsys, short", "nsys, shorter", "ncu, short", "ncu, another header"],
)
def test_columns_named_twice_and_rows_cut_short(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    (trace,) = open_traces([path])
    assert len(trace.device) + len(trace.kernel_metrics) >= 1


def bomb(path: Path) -> Path:
    """A trace of one operator and much white space, in little gzip."""
    event = b'{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":1,"dur":1}'
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + event + b" " * (8 << 20) + b"]}"))
    return path


def test_what_swells_too_much_is_refused_unless_limits_are_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", "off")
    monkeypatch.setattr(blocks, "SUSPECT_BYTES", 1 << 20)
    path = bomb(tmp_path / "trace.json.gz")
    with pytest.raises(InputError, match="swells"):
        open_traces([path])
    with without_limits():
        assert len(open_traces([path])[0].ops) == 1
    with pytest.raises(InputError, match="swells"):
        open_traces([path])


def test_analyze_lifts_limits_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIAGNOSE_CACHE", "off")
    monkeypatch.setattr(blocks, "SUSPECT_BYTES", 1 << 20)
    path = bomb(tmp_path / "trace.json.gz")
    assert main(["analyze", str(path)]) == 2
    assert main(["analyze", "--any-size", str(path)]) == 0
    assert main(["analyze", "--any-size", "--on", "dask", str(path)]) == 2
    assert "leave out --any-size" in capsys.readouterr().err


def test_limits_are_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError), without_limits():
        assert at_most(100) > 1 << 60
        open_traces([tmp_path / "missing.json"])
    assert at_most(100) == 100


def test_a_snapshot_above_the_limit_names_the_option_that_lifts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_snapshot, "_MOST_BYTES", 100)
    history = [{"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1000, "frames": []}] * 9
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [history]}, 4))
    with pytest.raises(InputError, match=r"longer than the 100 B that are read at once.*--any-size"):
        open_traces([path])
    with without_limits():
        assert len(open_traces([path])[0].memory) == 9


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_pickle_runs_code(protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[_Runs()]]}, protocol))
    with pytest.raises(DiagnoseError):
        open_traces([path])
    assert not (tmp_path / "ran").exists()
