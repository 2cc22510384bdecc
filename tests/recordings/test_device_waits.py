"""Kineto's `cuda_sync` events, as rows of `Trace.waits`: of public recordings, and through the cache's bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnose.trace.packed_columns import pack, unpack_traces
from diagnose.trace.readers import open_traces
from diagnose.trace.readers.kineto.meaning import wait_kind
from diagnose.trace.schema import WaitKind

ROOT = Path(__file__).resolve().parents[3] / "shared" / "traces"
RECORDS = ("pytorch__kineto/docs/traces/after_fix_trace.json", "pytorch__kineto/docs/traces/before_fix_trace.json")


def sync(name: str, ts: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": "cuda_sync", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2, "args": args}


@pytest.mark.parametrize("odd", [{}, {"cat": "something new", "ph": "X", "name": "x", "ts": 1, "dur": 1}])
def test_waits_are_read_with_what_they_wait_for(tmp_path: Path, odd: dict[str, object]) -> None:
    known = {"stream": 20, "device": 1, "correlation": 2, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 1}
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 5, "dur": 9},
        sync("Context Sync", 30, stream=4294967295, device=0, correlation=3),
        sync("Stream Wait Event", 10, **known),
        *([odd] if odd else []),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = open_traces([path])
    rows = [getattr(trace.waits, spec.name).tolist() for spec in trace.waits.columns()]
    assert list(zip(*rows, strict=True)) == [
        (10_000, 12_000, WaitKind.STREAM_FOR_EVENT, 1, 20, 2, 7, 1),
        (30_000, 32_000, WaitKind.HOST_FOR_DEVICE, 0, -1, 3, -1, -1),
    ]
    (kept,) = unpack_traces(bytearray(b"".join(pack([trace]))))
    assert [getattr(kept.waits, spec.name).tolist() for spec in trace.waits.columns()] == rows


def test_both_spellings() -> None:
    assert wait_kind("Stream Sync") == wait_kind("Stream Synchronize") == WaitKind.HOST_FOR_STREAM
    assert wait_kind("Event Sync") == WaitKind.HOST_FOR_EVENT
    assert wait_kind("Device Sync") == wait_kind("Context Sync") == WaitKind.HOST_FOR_DEVICE
    assert wait_kind("Fence") == WaitKind.UNKNOWN


@pytest.mark.parametrize(("path", "record"), zip(RECORDS, (100, -1), strict=True))
def test_a_public_recording(path: str, record: int) -> None:
    if not (ROOT / path).is_file():
        pytest.skip("this trace is not in the collection")
    (trace,) = open_traces([ROOT / path])
    assert trace.waits.kind.tolist() == [WaitKind.STREAM_FOR_EVENT, WaitKind.HOST_FOR_EVENT]
    assert trace.waits.wait_on_correlation.tolist() == [record, record]
