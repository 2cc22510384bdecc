"""A run folder, as a watched program leaves it, becomes one trace a rank."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.collect import records
from diagnose.errors import NotATrace
from diagnose.model import Site, SyncSite
from diagnose.trace import StackFrame, Thread, Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.telemetry import rank_records
from diagnose.trace.schema import RangeKind

BASE = 1_700_000_000_000_000_000


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def kineto(*events: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": events}).encode())


OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 50, "tid": 51, "ts": 1.0, "dur": 2.0}

WINDOW = {"start_ns": BASE, "end_ns": BASE + 9000, "first_step": 8, "steps": 4, "steady": "5 of 6"}
STACK = [["/home/u/train.py", 41, "step"], ["/home/u/.venv/lib/python3.11/site-packages/x.py", 1, "f"]]
SITE = {"kind": "DataLoader", "file": "/home/u/data.py", "line": 9, "function": "main"}
FACTS = {
    "rank": 0,
    "world_size": 1,
    "pid": 50,
    "owned_roots": ["/home/u"],
    "torch_version": "2.13.0",
    "cpu_count": 2,
    "device_capability": [9, 0],
}

LINES = gzip.compress(
    json.dumps(
        {
            "start_ns": BASE + 9100,
            "whole": True,
            "frames": [["/home/u/train.py", 8, "main", -1], ["/home/u/train.py", 3, "loss", 0]],
            "t": [0, 100, 50, 150],
            "f": [0, 1, 0, -1],
        }
    ).encode()
)

FILES: dict[str, str | bytes] = {
    records.TRACE: kineto(OP),
    records.LINES: LINES,
    records.WINDOW: json.dumps(WINDOW),
    records.STEPS: lines({"t": BASE + 10, "b": 2, "w": 3}, {"t": BASE + 20, "b": 1, "w": 4}),
    records.RANGES: lines(
        {"k": "input", "s": BASE + 5000, "e": BASE + 7000, "n": "next", "t": 51},
        {"k": "gc", "s": BASE + 1, "e": BASE + 2, "n": "gc 2", "t": 60},
    ),
    records.STACKS: lines({"i": 7, "f": STACK}),
    records.SAMPLES: lines({"t": [BASE + 3, BASE + 4], "s": [7, 7]}, {"t": [BASE + 5], "s": [99]}),
    records.SITES: lines(SITE | {"arguments": {"num_workers": 0, "sampler": [1]}}),
    records.SYNCS: lines({"file": "/home/u/train.py", "line": 12, "function": "step", "count": 6, "steps": 3}),
    records.COUNTERS: lines(
        {"t": BASE + 8, "d": 0, "v": {"gpu.sm_activity": 0.5}},
        {"t": BASE + 9, "d": -1, "v": {"host.cpu": 20, "gone": None}},
    ),
    records.FACTS: json.dumps(FACTS),
}


def run(tmp_path: Path, files: dict[str, str | bytes], rank: int = 0) -> Path:
    folder = tmp_path / "run" / f"rank{rank}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / "run"


def opened(tmp_path: Path, files: dict[str, str | bytes]) -> Trace:
    (trace,) = open_traces([run(tmp_path, files)])
    return trace


def test_the_reader_and_the_writer_mean_the_same_files() -> None:
    for name in (
        "TRACE",
        "WINDOW",
        "LINES",
        "STEPS",
        "RANGES",
        "STACKS",
        "SAMPLES",
        "SITES",
        "SYNCS",
        "COUNTERS",
        "FACTS",
    ):
        assert getattr(rank_records, name) == getattr(records, name)


def test_all_records(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    assert (trace.rank, trace.world_size, trace.window_ns) == (0, 1, (BASE, BASE + 9000))
    assert trace.ops.start_ns.tolist() == [BASE + 1000]
    assert trace.step_log.end_ns.tolist() == [BASE + 10, BASE + 20]
    assert trace.step_log.input_ns.tolist() == [3, 4]
    assert trace.warnings == ()


def test_a_step_that_the_program_s_end_cut_off_is_none(tmp_path: Path) -> None:
    def mark(index: int, start_us: float, us: float) -> dict[str, Any]:
        return OP | {"cat": "user_annotation", "name": f"ProfilerStep#{index}", "ts": start_us, "dur": us}

    marks = kineto(OP, mark(8, 0.1, 5.0), mark(9, 5.2, 3.9), mark(10, 9.0, 1.5))
    (trace,) = open_traces([run(tmp_path, {**FILES, records.TRACE: marks})])
    steps = trace.ranges.where(trace.ranges.kind == RangeKind.STEP)
    assert [trace.names[name] for name in steps.name] == ["ProfilerStep#8", "ProfilerStep#9"]


def test_ranges_join_the_threads_of_the_profiler(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    assert [RangeKind(kind) for kind in trace.ranges.kind] == [RangeKind.GC, RangeKind.INPUT]
    assert [trace.names[name] for name in trace.ranges.name] == ["gc 2", "next"]
    assert [trace.threads[thread] for thread in trace.ranges.thread] == [Thread(50, 60), Thread(50, 51)]
    assert trace.ops.thread[0] == trace.ranges.thread[1]


def test_samples_keep_their_stacks_and_say_whose_each_frame_is(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    assert trace.samples.time_ns.tolist() == [BASE + 3, BASE + 4]  # the sample of an unknown stack is not there
    inner, outer = trace.stacks[trace.samples.stack[0]]
    assert inner == StackFrame("/home/u/train.py", 41, "step", owned=True)
    assert not outer.owned


def test_sites_and_waits(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    arguments: dict[str, int | float | str | bool | None] = {"num_workers": 0, "sampler": "[1]"}
    assert trace.sites == (Site("DataLoader", "/home/u/data.py", 9, "main", arguments, owned=True),)
    assert trace.sync_sites == (SyncSite("/home/u/train.py", 12, "step", 2.0),)


def test_nobody_looked_for_waits_is_not_the_same_as_none_seen(tmp_path: Path) -> None:
    without = {name: content for name, content in FILES.items() if name != records.SYNCS}
    assert opened(tmp_path / "a", without).sync_sites is None
    assert opened(tmp_path / "b", FILES | {records.SYNCS: ""}).sync_sites == ()


def test_counters(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    rows = zip(trace.counters.name.tolist(), trace.counters.device.tolist(), trace.counters.value.tolist(), strict=True)
    assert [(trace.names[name], device, value) for name, device, value in rows] == [
        ("gpu.sm_activity", 0, 0.5),
        ("host.cpu", -1, 20.0),
    ]


def test_facts(tmp_path: Path) -> None:
    facts = opened(tmp_path, FILES).facts
    assert (facts.torch_version, facts.cpu_count, facts.device_capability) == ("2.13.0", 2, (9, 0))
    assert facts.steady == "5 of 6"
    assert facts.matmul_precision is None


def test_a_fact_of_the_wrong_type_is_left_out_and_told(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES | {records.FACTS: '{"cpu_count": "two", "torch_version": "2.13.0"}'})
    assert (trace.facts.cpu_count, trace.facts.torch_version) == (None, "2.13.0")
    assert "cpu_count" in trace.warnings[0]


def test_what_failed_in_the_watcher_is_told(tmp_path: Path) -> None:
    said = FACTS | {"watcher_failures": ["Sampler.sample: OSError: disk full (sampler.py:3)"]}
    (warning,) = opened(tmp_path, FILES | {records.FACTS: json.dumps(said)}).warnings
    assert "the watcher itself failed in part" in warning
    assert "disk full" in warning


@pytest.mark.parametrize("name", FILES)
def test_any_file_may_be_missing(tmp_path: Path, name: str) -> None:
    trace = opened(tmp_path, {other: content for other, content in FILES.items() if other != name})
    assert trace.rank == 0
    assert trace.warnings == ()


@pytest.mark.parametrize("name", FILES)
def test_any_file_may_stop_in_the_middle(tmp_path: Path, name: str) -> None:
    content = FILES[name]
    trace = opened(tmp_path, FILES | {name: content[: len(content) * 2 // 3]})
    assert trace.rank == 0


def test_a_line_that_is_cut_off_costs_only_itself(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES | {records.STEPS: lines({"t": 1}, {"t": 2}) + '{"t": 3, "b'})
    assert (trace.step_log.end_ns.tolist(), trace.step_log.input_ns.tolist()) == ([1, 2], [-1, -1])
    assert trace.warnings == ()


def test_a_line_that_is_no_record_is_told(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES | {records.STEPS: "what\n" + lines({"t": 1}, {"t": "x"})})
    assert trace.step_log.end_ns.tolist() == [1]
    assert "2 lines cannot be read" in trace.warnings[0]


def test_without_a_profile_the_log_and_the_samples_remain(tmp_path: Path) -> None:
    trace = opened(tmp_path, {name: FILES[name] for name in (records.STEPS, records.STACKS, records.SAMPLES)})
    assert (len(trace.step_log), len(trace.samples), trace.window_ns) == (2, 2, None)


def test_a_profile_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES | {records.TRACE: b"\x1f\x8bnonsense"})
    assert (len(trace.step_log), len(trace.ops)) == (2, 0)
    assert len(trace.warnings) == 1


def test_ranks_come_in_order_and_from_the_folders_name(tmp_path: Path) -> None:
    for rank in (10, 2):
        run(tmp_path, {records.STEPS: lines({"t": rank})}, rank)
    assert [trace.rank for trace in open_traces([tmp_path / "run"])] == [2, 10]


def test_one_ranks_folder_can_be_given_alone(tmp_path: Path) -> None:
    (trace,) = open_traces([run(tmp_path, FILES) / "rank0"])
    assert len(trace.step_log) == 2


def test_a_run_folder_in_which_nothing_was_recorded(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="nothing was recorded"):
        open_traces([run(tmp_path, {records.STEPS: "", records.FACTS: ""})])


@pytest.mark.parametrize(
    ("file", "owned"),
    [
        ("/home/u/src/diagnose/collect/inside/steps.py", False),
        ("/home/u/diagnose/train.py", True),
        ("/home/u/train.py", True),
        ("/home/u/pkg/model.py", True),
        ("/home/u/.venv/lib/python3.11/site-packages/torch/nn/modules.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/home/u/miniconda/lib/python3.12/json/decoder.py", False),
        ("/home/other/train.py", False),
        ("/home/user2/train.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("train.py", True),
        ("", False),
    ],
)
def test_ownership(file: str, owned: bool) -> None:
    assert rank_records.Ownership.of(["/home/u"])(file) is owned


def test_without_roots_what_is_not_installed_is_owned() -> None:
    ownership = rank_records.Ownership.of(None)
    assert ownership("/anywhere/train.py")
    assert not ownership("/x/site-packages/y.py")


def test_followed_lines_are_stacks_with_the_callers(tmp_path: Path) -> None:
    trace = opened(tmp_path, FILES)
    assert (trace.lines.time_ns - BASE).tolist() == [9100, 9200, 9250, 9400]
    assert [[frame.line for frame in trace.stacks[stack]] for stack in trace.lines.stack] == [[8], [3, 8], [8], []]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"no gzip", LINES[:-9], gzip.compress(b'{"frames": []}'), gzip.compress(b"[" * 100_000)],
    ids=["empty", "no gzip", "cut short", "without lines", "deeply nested"],
)
def test_damaged_lines_cost_only_themselves(tmp_path: Path, damaged: bytes) -> None:
    trace = opened(tmp_path, FILES | {records.LINES: damaged})
    assert len(trace.lines) == 0
    assert len(trace.samples) == 2
    assert [warning for warning in trace.warnings if records.LINES in warning]
