"""The allocator's events in torch.profiler's JSON become memory events, and their totals counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.kineto.torch_profiler import read
from diagnose.trace.schema import MemoryAction

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}


def opened(tmp_path: Path, events: list[Any], **header: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": [*events, OP]}))
    (trace,) = open_traces([path])
    return trace


def instant(ts: object, args: dict[str, int], name: str = "[memory]") -> dict[str, Any]:
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": name, "pid": 1, "tid": 1, "ts": ts, "args": args}


def memory(ts: object, size: int, allocated: int, reserved: int, device: int = 0, address: int = 7) -> dict[str, Any]:
    kind = 0 if device < 0 else 1
    totals = {"Total Allocated": allocated, "Total Reserved": reserved}
    return instant(ts, {"Device Type": kind, "Device Id": device, "Addr": address, "Bytes": size, **totals})


def series(trace: Trace, name: str) -> list[tuple[int, int, float]]:
    counters = trace.counters
    rows = counters.where(counters.name == trace.names.index(name))
    return list(zip(rows.time_ns.tolist(), rows.device.tolist(), rows.value.tolist(), strict=True))


def test_what_is_taken_and_given_back(tmp_path: Path) -> None:
    trace = opened(tmp_path, [memory(10.5, 512, 512, 2048), memory(11, -512, 0, 2048)])
    assert trace.memory.time_ns.tolist() == [10500, 11000]
    assert trace.memory.action.tolist() == [MemoryAction.ALLOC, MemoryAction.FREE]
    assert trace.memory.size_bytes.tolist() == [512, 512]
    assert trace.memory.address.tolist() == [7, 7]
    assert trace.memory.device.tolist() == [0, 0]


def test_totals_are_counters_as_a_live_run_names_them(tmp_path: Path) -> None:
    trace = opened(tmp_path, [memory(10, 512, 512, 2048), memory(11, 64, 576, 2048)])
    assert series(trace, "allocator.allocated_bytes") == [(10000, 0, 512), (11000, 0, 576)]
    assert series(trace, "allocator.reserved_bytes") == [(10000, 0, 2048), (11000, 0, 2048)]


def test_a_total_that_stays_is_written_down_where_it_begins_and_ends(tmp_path: Path) -> None:
    events = [memory(at, 1, at, 100 if at < 14 else 200, device=at % 2) for at in range(10, 20)]
    trace = opened(tmp_path, events)
    ours = [row for row in series(trace, "allocator.reserved_bytes") if row[1] == 0]
    assert ours == [(10000, 0, 100), (14000, 0, 200), (18000, 0, 200)]


def test_memory_of_the_host_is_of_no_device_and_reserves_nothing(tmp_path: Path) -> None:
    trace = opened(tmp_path, [memory(10, 8, 8, 0, device=-1)])
    assert series(trace, "allocator.allocated_bytes") == [(10000, -1, 8)]
    assert "allocator.reserved_bytes" not in trace.names


def test_an_allocation_that_failed(tmp_path: Path) -> None:
    trace = opened(tmp_path, [instant(5, {"Device Type": 1, "Device Id": 0, "Bytes": 1 << 40}, "[OutOfMemory]")])
    assert trace.memory.action.tolist() == [MemoryAction.OUT_OF_MEMORY]
    assert trace.memory.size_bytes.tolist() == [1 << 40]


def test_profilers_of_2021_wrote_sizes_alone(tmp_path: Path) -> None:
    old = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 4}
    trace = opened(tmp_path, [{**old, "args": {"Device Type": 1, "Device Id": 0, "Bytes": -8}}])
    assert trace.memory.action.tolist() == [MemoryAction.FREE]
    assert len(trace.counters) == 0


def test_times_since_the_epoch_keep_their_digits(tmp_path: Path) -> None:
    text = json.dumps([memory(0, 8, 8, 16), OP]).replace('"ts": 0', '"ts": 1712195495505582.988')
    path = tmp_path / "trace.json"
    path.write_text(text)
    (trace,) = open_traces([path])
    assert trace.memory.time_ns.tolist() == [1712195495505582988]


def test_times_are_moved_by_the_base(tmp_path: Path) -> None:
    trace = opened(tmp_path, [memory(10, 8, 8, 16)], baseTimeNanoseconds=1711964646000000000)
    assert trace.memory.time_ns.tolist() == [1711964646000010000]
    assert trace.counters.time_ns.tolist() == [1711964646000010000] * 2


@pytest.mark.parametrize("odd", [{"args": None}, {"args": 3}, {"ts": None}, {"name": "Record Window End"}, {"ph": "I"}])
def test_other_instants_are_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    trace = opened(tmp_path, [{**memory(10, 8, 8, 16), **odd}, memory(11, 8, 16, 16)])
    assert trace.memory.time_ns.tolist() == [11000]
    assert len(trace.ops) == 1


def test_the_chunks_of_a_document_make_one_series(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([OP, *(memory(at, 8, 8 * at, 4096) for at in range(2, 50))]))
    (trace,) = read(path, 200)
    assert trace.memory.time_ns.tolist() == [1000 * at for at in range(2, 50)]
    assert len(series(trace, "allocator.reserved_bytes")) == 2
