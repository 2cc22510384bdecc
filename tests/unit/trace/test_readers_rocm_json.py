"""The JSON of rocprofv3, of rocprof 1 and of rocmProfileData."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers import open_traces
from diagnose.trace.schema import MISSING, CopyDirection, RangeKind, WorkKind

GPU, CPU = {"handle": 7002}, {"handle": 7000}


def record(kind: int, operation: int, begin: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 184,
        "kind": kind,
        "operation": operation,
        "thread_id": 908,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": begin,
        "end_timestamp": end,
        **more,
    }


def tool(pid: int = 908) -> dict[str, Any]:
    dispatch = {"agent_id": GPU, "queue_id": {"handle": 16}, "kernel_id": 8, "dispatch_id": 1, "grid_size": {"x": 512}}
    return {
        "metadata": {"pid": pid, "command": ["python", "--token=SECRET"], "config": {"environ": "SECRET"}},
        "agents": [
            {"id": CPU, "type": 1, "product_name": "AMD EPYC", "logical_node_type_id": 0},
            {
                "id": GPU,
                "type": 2,
                "product_name": "AMD Instinct MI350X",
                "name": "gfx950",
                "logical_node_type_id": 3,
                "mem_banks": [{"size_in_bytes": 1000}],
            },
        ],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]},
                {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
                {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
            ],
            "marker_api": [{"key": 30, "value": "Optimizer.step#AdamW.step"}],
        },
        "kernel_symbols": [{"kernel_id": 8, "kernel_name": "gemm.kd", "formatted_kernel_name": "gemm"}],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": [
                record(11, 2, 63857982592000, 63857982594840, 1, dispatch_info=dispatch, stream_id={"handle": 5})
            ],
            "hip_api": [record(1, 1, 63857982590000, 63857982591000, 1)],
            "hsa_api": [],
            "marker_api": [record(3, 1, 63857982580000, 63857982599000, 30)],
            "rccl_api": [record(4, 0, 63857982589000, 63857982592000, 40)],
            "memory_copy": [
                record(2, 1, 63857982600000, 63857982700000, 2, dst_agent_id=GPU, src_agent_id=CPU, bytes=4096)
            ],
        },
    }


def document(*tools: dict[str, Any]) -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": list(tools)}).encode()


def opened(path: Path, data: bytes) -> list[Trace]:
    path.write_bytes(data)
    return open_traces([path])


def test_everything_that_rocprofv3_records(tmp_path: Path) -> None:
    (trace,) = opened(tmp_path / "908_results.json", document(tool()))
    device = trace.device
    assert [trace.names[number] for number in device.name] == ["gemm", "MEMORY_COPY_HOST_TO_DEVICE"]
    assert device.start_ns.tolist() == [63857982592000, 63857982600000]
    assert device.end_ns.tolist() == [63857982594840, 63857982700000]
    assert device.kind.tolist() == [WorkKind.KERNEL, WorkKind.COPY]
    assert device.device.tolist() == [3, 3]
    assert device.stream.tolist() == [5, MISSING]
    assert device.size_bytes.tolist() == [MISSING, 4096]
    assert device.direction.tolist() == [CopyDirection.UNKNOWN, CopyDirection.HOST_TO_DEVICE]
    assert [trace.names[number] for number in trace.calls.name] == ["hipLaunchKernel"]
    assert trace.calls.correlation.tolist() == [1]
    assert [trace.names[number] for number in trace.ranges.name] == ["Optimizer.step#AdamW.step", "ncclAllReduce"]
    assert trace.ranges.kind.tolist() == [RangeKind.OPTIMIZER, RangeKind.COLLECTIVE]
    assert [trace.collectives[row].kind for row in device.collective.tolist() if row >= 0] == ["all_reduce"]
    assert [(thread.pid, thread.tid) for thread in trace.threads] == [(908, 908)]
    assert trace.facts.device_name == "AMD Instinct MI350X"
    assert trace.facts.device_memory_bytes == 1000
    assert trace.warnings == ()


def test_command_lines_and_environments_are_not_kept(tmp_path: Path) -> None:
    (trace,) = opened(tmp_path / "results.json", document(tool()))
    assert "SECRET" not in repr(trace)


def test_several_processes_of_one_document_are_ranks(tmp_path: Path) -> None:
    traces = opened(tmp_path / "results.json.gz", gzip.compress(document(tool(12), tool(11))))
    assert [(trace.rank, trace.threads[0].pid) for trace in traces] == [(0, 11), (1, 12)]
    assert "2 processes are taken for ranks" in traces[0].warnings[0]


def test_a_document_that_was_cut_off_gives_what_it_holds(tmp_path: Path) -> None:
    whole = tool()
    whole["buffer_records"] = {"kernel_dispatch": whole["buffer_records"]["kernel_dispatch"] * 20}
    data = document(whole)
    (trace,) = opened(tmp_path / "results.json", data[: data.rindex(b'"start_timestamp"')])
    assert len(trace.device) == 19
    assert any("ends in the middle" in warning for warning in trace.warnings)


def test_a_document_cut_off_before_its_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged"):
        opened(tmp_path / "results.json", document(tool())[:200])


def test_records_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    whole = tool()
    whole["buffer_records"]["hip_api"].append(record(1, 1, 1, 2, 3) | {"start_timestamp": "soon"})
    (trace,) = opened(tmp_path / "results.json", document(whole))
    assert len(trace.calls) == 1
    assert any("1 records of hip_api make no sense" in warning for warning in trace.warnings)


def test_a_run_that_recorded_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="no kernel, copy or call was recorded"):
        opened(tmp_path / "results.json", document({**tool(), "buffer_records": {}}))


def row_name(pid: int, name: str) -> dict[str, Any]:
    return {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": 0}


def rocprof(*events: dict[str, Any]) -> bytes:
    head = [row_name(1, "COPY"), row_name(2, "CPU HIP API"), row_name(3, "CPU HSA API"), row_name(8, "GPU2")]
    head.append(row_name(520, "GPU Barriers2"))
    text = "\n,".join(json.dumps(event) for event in [{}, *head, *events])
    other = '"otherData": {\n "CMD": "train --token=SECRET",\n "Agent1.Name": "a",\n "Agent1.Name": "a"\n }'
    return f'{{ "traceEvents":[{text}\n],\n{other}\n}}'.encode()


def times(begin: int, end: int, **more: str) -> dict[str, str]:
    return {"BeginNs": str(begin), "EndNs": str(end), "pid": "908", "tid": "909", **more}


def test_rocprof_1_keeps_its_exact_times_in_the_arguments(tmp_path: Path) -> None:
    where = {"ph": "X", "ts": "769537350099", "dur": "7", "tid": 909}
    kernel = {"gpu-id": "2", "queue-id": "4", "KernelName": "gemm.kd"}
    hip_kernel = {"dev-id": "2", "queue-id": "0", "stream-id": "6", "Index": "11"}
    (trace,) = opened(
        tmp_path / "results.json",
        rocprof(
            {**where, "name": "gemm.kd", "pid": 8, "args": times(769537350099688, 769537350107288, **kernel)},
            {**where, "name": "CopyHostToDevice", "pid": 1, "args": times(700, 800, **hip_kernel)},
            {**where, "name": "<barrier packet>", "pid": 520, "args": times(5, 6)},
            {**where, "name": "hipMemcpyAsync", "pid": 2, "args": times(500, 600, Index="11")},
            {**where, "name": "hsa_queue_create", "pid": 3, "args": times(500, 600, Index="11")},
        ),
    )
    device = trace.device
    assert [trace.names[number] for number in device.name] == ["CopyHostToDevice", "gemm"]
    assert device.start_ns.tolist() == [700, 769537350099688]
    assert device.end_ns.tolist() == [800, 769537350107288]
    assert device.device.tolist() == [2, 2]
    assert device.stream.tolist() == [6, MISSING]
    assert device.correlation.tolist() == [11, MISSING]
    called = {trace.names[name]: number for name, number in zip(trace.calls.name, trace.calls.correlation, strict=True)}
    assert called == {"hipMemcpyAsync": 11, "hsa_queue_create": MISSING}
    assert "SECRET" not in repr(trace)


def test_rocprof_1_without_work_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="no kernel and no call was recorded"):
        opened(tmp_path / "results.json", rocprof())


def test_the_json_of_rpd_is_read_with_whole_microseconds_and_says_so(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {},
        {"name": "process_name", "ph": "M", "pid": "2", "args": {"name": "GPU2"}},
        {"name": "process_sort_index", "ph": "M", "pid": "2", "args": {"sort_index": "1000002"}},
        {
            "pid": "2",
            "tid": "0",
            "name": "gemm",
            "ts": "830",
            "dur": "26",
            "ph": "X",
            "args": {"desc": "KernelExecution"},
        },
        {"pid": "9", "tid": "9", "name": "hipLaunchKernel", "ts": "800", "dur": "3", "ph": "X", "args": {"desc": ""}},
        {"pid": "9", "tid": "9", "cat": "api_op", "name": "api_op", "ts": "800", "id": "7", "ph": "s"},
    ]
    (trace,) = opened(tmp_path / "trace.json", json.dumps(events).encode())
    assert (trace.device.start_ns.tolist(), trace.device.end_ns.tolist()) == ([830_000], [856_000])
    assert (trace.calls.start_ns.tolist(), trace.calls.end_ns.tolist()) == ([800_000], [803_000])
    assert trace.device.device.tolist() == [2]
    assert "whole microseconds" in trace.warnings[0]
