"""Memory snapshots and timelines: what they say is read, and nothing in them is run."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.errors import InputError
from diagnose.trace import StackFrame, Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.io.plain_pickle import NotPlain, plain_data
from diagnose.trace.schema import MemoryAction, MemoryCategory

ROOT = Path(__file__).resolve().parents[4] / "shared" / "traces"
SNAPSHOTS = sorted(path for path in ROOT.rglob("*.pickle") if "malformed" not in str(path)) if ROOT.is_dir() else []

LINE = {"name": "step", "filename": "train.py", "line": 41}
TORCH = {"name": "wrapper", "filename": "/x/site-packages/torch/optim/optimizer.py", "line": 533}
UNWIND = {"name": "torch::unwind::unwind()", "filename": "??", "line": 0}
CEVAL = {"name": "PyEval_EvalCode", "filename": "/src/Python/ceval.c", "line": 578}


def event(action: str, addr: int = 4096, size: int = 512, time_us: int | None = 1_000, **more: Any) -> dict[str, Any]:
    timed = {} if time_us is None else {"time_us": time_us}
    return {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **timed, **more}


def snapshot(*histories: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"segments": [], "device_traces": list(histories), **more}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Trace]:
    def write(value: object, protocol: int = 4) -> Trace:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(value, protocol))
        (trace,) = open_traces([path])
        return trace

    return write


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_allocators_history_is_read(opened: Callable[..., Trace], protocol: int) -> None:
    history = [event("alloc"), event("free_requested", time_us=1_002), event("free_completed", time_us=1_003)]
    trace = opened(snapshot([], history), protocol)
    assert trace.memory.time_ns.tolist() == [1_000_000, 1_002_000, 1_003_000]
    assert trace.memory.action.tolist() == [MemoryAction.ALLOC, MemoryAction.FREE_REQUESTED, MemoryAction.FREE]
    assert trace.memory.size_bytes.tolist() == [512, 512, 512]
    assert trace.memory.device.tolist() == [1, 1, 1]
    assert trace.window_ns == (1_000_000, 1_003_000)
    assert trace.warnings == ()


def test_frames_are_python_only_and_shared(opened: Callable[..., Trace]) -> None:
    frames = [UNWIND, LINE, CEVAL, TORCH]
    trace = opened(snapshot([event("alloc", frames=frames), event("alloc", frames=list(frames)), event("alloc")]))
    expected = (
        StackFrame("train.py", 41, "step", owned=True),
        StackFrame("/x/site-packages/torch/optim/optimizer.py", 533, "wrapper", owned=False),
    )
    assert trace.stacks == (expected,)
    assert trace.memory.stack.tolist() == [0, 0, -1]


def test_a_history_without_times_keeps_its_order(opened: Callable[..., Trace]) -> None:
    trace = opened(snapshot([event("alloc", 4096, time_us=None), event("free_completed", 8192, time_us=None)]))
    assert trace.memory.time_ns.tolist() == [-1, -1]
    assert trace.memory.address.tolist() == [4096, 8192]
    assert trace.window_ns is None
    assert "no times" in trace.warnings[0]


def test_running_out_of_memory_has_no_address(opened: Callable[..., Trace]) -> None:
    oom = {"action": "oom", "size": 1 << 30, "stream": 0, "time_us": 5, "device_free": 7, "frames": []}
    trace = opened(snapshot([oom, {"action": "snapshot", "time_us": 6}]))
    assert trace.memory.action.tolist() == [MemoryAction.OUT_OF_MEMORY]
    assert trace.memory.address.tolist() == [-1]


def test_segments_say_what_is_held_and_what_is_free_in_one_piece(opened: Callable[..., Trace]) -> None:
    blocks = [
        {"address": 0, "size": 30, "state": "inactive"},
        {"address": 30, "size": 50, "state": "active_allocated"},
        {"address": 80, "size": 20, "state": "inactive"},
    ]
    segment: dict[str, Any] = {
        "device": 0,
        "address": 0,
        "total_size": 100,
        "allocated_size": 50,
        "active_size": 50,
        "stream": 3,
    }
    segment |= {"segment_pool_id": (0, 0), "is_expandable": True, "blocks": blocks}
    trace = opened({"segments": [segment], "device_traces": [[]]})
    held = trace.segments
    assert [held.size_bytes[0], held.allocated_bytes[0], held.stream[0]] == [100, 50, 3]
    assert held.expandable[0] == 1


def test_annotations_become_ranges(opened: Callable[..., Trace]) -> None:
    def mark(stage: str, time_us: int) -> dict[str, Any]:
        return {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": time_us}

    trace = opened(
        snapshot([event("alloc")], external_annotations=[mark("START", 10), mark("END", 14), mark("END", 20)])
    )
    assert (trace.ranges.start_ns.tolist(), trace.ranges.end_ns.tolist()) == ([10_000], [14_000])


def test_entries_that_are_none_are_counted(opened: Callable[..., Trace]) -> None:
    trace = opened(snapshot([event("alloc"), 7, {"no": "action"}]))  # type: ignore[list-item]
    assert len(trace.memory) == 1
    assert "2 entries" in trace.warnings[0]


class Runs:
    """Pickles as a call that leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_pickle_runs(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot([event("alloc", frames=Runs(tmp_path / "ran"))]), protocol))
    with pytest.raises(InputError, match="would run code"):
        open_traces([path])
    assert not (tmp_path / "ran").exists()


HOSTILE = {
    "a huge table of shared objects": b"\x80\x04r\xff\xff\xff\x7f.",
    "a text longer than the file": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "a frame longer than the file": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "nested tuples, which overrun the stack when hashed": b"\x80\x04})" + b"\x85" * 100_000 + b"K\x01s.",
    "containers and nothing else": b"\x80\x04" + b"]" * 100_000 + b".",
    "an empty stack": b"\x80\x04e.",
    "a dictionary with a list for a key": b"\x80\x04}]K\x01s.",
    "an object outside the file": b"\x80\x04K\x01Q.",
    "an integer of many digits": b"\x80\x04\x8b" + b"\x00\x00\x10\x00" + b"\x7f" * 0x100000 + b".",
    "no end": pickle.dumps(snapshot([event("alloc")]))[:-10],
    "nothing": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pickles_are_refused(data: bytes) -> None:
    with pytest.raises(NotPlain) as refused:
        plain_data(data)
    assert "\n" not in str(refused.value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(plain, st.integers(2, 5))
def test_plain_data_comes_back_as_it_was(value: Any, protocol: int) -> None:
    assert plain_data(pickle.dumps(value, protocol)) == value


@given(st.data())
def test_damaged_pickles_are_read_or_refused(data: st.DataObject) -> None:
    good = pickle.dumps(snapshot([event("alloc", frames=[LINE])] * 3), 4)
    place = data.draw(st.integers(0, len(good) - 1))
    with_fault = good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]
    try:
        plain_data(with_fault)
    except NotPlain as error:
        assert str(error)


@pytest.mark.skipif(not SNAPSHOTS, reason="no collection of public traces lies beside the repository")
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name)
def test_real_snapshots_equal_a_plain_reading(path: Path) -> None:
    document = pickle.loads(path.read_bytes())
    entries = [entry for history in document["device_traces"] for entry in history]
    (trace,) = open_traces([path])
    assert len(trace.memory) == len(entries) > 0
    assert int(trace.memory.size_bytes.sum()) == sum(entry["size"] for entry in entries)
    assert int(trace.segments.size_bytes.sum()) == sum(segment["total_size"] for segment in document["segments"])
    assert trace.memory.time_ns[-1] == max(entry["time_us"] for entry in entries) * 1000


def test_a_raw_timeline_gives_events(tmp_path: Path) -> None:
    rows = [[-1, 1, 512, 0], [10, 2, 64, 4], [20, 3, -64, 4], [20, 3, 64, 5], [30, 4, -64, 5]]
    path = tmp_path / "timeline.raw.json"
    path.write_text(json.dumps(rows))
    (trace,) = open_traces([path])
    assert trace.memory.time_ns.tolist() == [-1, 10, 20, 20, 30]
    assert trace.memory.size_bytes.tolist() == [512, 64, -64, 64, 64]
    assert trace.memory.action[[0, 1, 2, 4]].tolist() == [
        MemoryAction.PREEXISTING,
        MemoryAction.ALLOC,
        MemoryAction.RECATEGORIZED,
        MemoryAction.FREE,
    ]
    assert trace.memory.category[[0, 1, 4]].tolist() == [
        MemoryCategory.PARAMETER,
        MemoryCategory.ACTIVATION,
        MemoryCategory.GRADIENT,
    ]
    assert trace.window_ns == (10, 30)


def test_a_coalesced_timeline_gives_counters(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([[1_000, 2_000], [[0, 512, *[0] * 7], [0, 512, 64, *[0] * 6]]]))
    (trace,) = open_traces([path])
    values = {
        (int(time), trace.names[name]): value
        for time, name, value in zip(trace.counters.time_ns, trace.counters.name, trace.counters.value, strict=True)
    }
    assert values[1_000_000, "memory.parameter_bytes"] == 512
    assert values[2_000_000, "memory.optimizer_state_bytes"] == 64
    assert len(values) == 16


@pytest.mark.parametrize("text", ["[[1, 2], [3, 4]]", "[[1, 2, 3, 4], [5]]", "[[1, 2, 3, 4], ", '[["a"]]'])
def test_other_lists_of_lists_are_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        open_traces([path])
    assert "\n" not in str(refused.value)


def test_a_snapshot_beside_a_trace_is_no_rank_of_its_own(tmp_path: Path) -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [launch]}))
    (tmp_path / "memory.pickle").write_bytes(pickle.dumps(snapshot([event("alloc", frames=[LINE])])))
    (tmp_path / "smi.csv").write_text("timestamp, index, power.draw [W]\n2024/10/30 18:42:33.189, 0, 22.89 W\n")
    (trace,) = open_traces([tmp_path])
    assert (len(trace.calls), len(trace.memory), len(trace.counters)) == (1, 1, 1)
    assert trace.names[trace.counters.name[0]] == "gpu.power_watts"
    assert trace.stacks[trace.memory.stack[0]][0].line == 41
