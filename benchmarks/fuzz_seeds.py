"""Small recordings of every format, made here: what the fuzzer starts from.

A seed is a byte that says how the rest becomes a file, and the rest: the file itself, what to compress, the script of a
database, several files of a folder, or the JSON of what to pickle. So mutations reach behind compression and behind the
encodings of SQLite and pickle.
"""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from pathlib import Path
from typing import Any

from fuzz_seeds_amd import ROCPD, ROCPROF, ROCPROF_CSV, ROCPROF_JSON, RPD, perfetto, rocprofv3

PLAIN, GZIP, SCRIPT, FOLDER, PICKLE = range(5)
"""What the first byte says."""
BREAK = b"\n=====\n"
"""Between the files of a folder, each of which begins with a line that names it."""
_OPERATIONS = 200_000
"""A script that a mutation sent into a loop is stopped after so many instructions of SQLite's machine."""


def seeds() -> dict[str, tuple[bytes, ...]]:
    """Return the fuzzer's inputs by format."""
    return {
        "torch.profiler": tuple(
            form + text
            for text in (_kineto(indent=None), _kineto(indent=1), _bare(), _merged())
            for form in (bytes([PLAIN]), bytes([GZIP]))
        ),
        "memory snapshot": (
            bytes([PICKLE]) + json.dumps(_snapshot()).encode(),
            *(bytes([PLAIN]) + pickle.dumps(_snapshot(), protocol) for protocol in (2, 4)),
        ),
        "memory timeline": tuple(bytes([PLAIN]) + json.dumps(one).encode() for one in (_EVENTS, _SIZES)),
        "Nsight Systems": _database(NSIGHT),
        "Nsight tables": tuple(bytes([PLAIN]) + text.encode() for text in (_GPU_TRACE, _NCU)),
        "rocpd": _database(ROCPD),
        "rpd": _database(RPD),
        "rocprof database": _database(ROCPROF),
        "rocprof CSV": tuple(bytes([PLAIN]) + text.encode() for text in ROCPROF_CSV.values()) + _folder(ROCPROF_CSV),
        "rocprof JSON": (bytes([PLAIN]) + json.dumps(ROCPROF_JSON).encode(),),
        "rocprofv3 JSON": (bytes([PLAIN]) + json.dumps(rocprofv3()).encode(),),
        "Perfetto": (bytes([PLAIN]) + perfetto(),),
        "telemetry": tuple(bytes([PLAIN]) + text.encode() for text in _TELEMETRY),
        "run folder": _folder(_RUN),
    }


def put(data: bytes, folder: Path) -> Path:
    """Write an input into an empty folder; the file or folder to be opened."""
    form, rest = data[:1], data[1:]
    path = folder / "input"
    if form == bytes([SCRIPT]):
        _run_script(path, rest)
    elif form == bytes([FOLDER]):
        path.mkdir()
        for number, piece in enumerate(rest.split(BREAK)[:16]):
            line, _, content = piece.partition(b"\n")
            name = "".join(letter for letter in line.decode("latin-1") if letter.isalnum() or letter in "._-/")[:60]
            file = path.joinpath(*[part for part in name.split("/") if part.strip(".")][:3] or [str(number)])
            if not file.exists() and not any(parent.is_file() for parent in file.parents):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    elif form == bytes([PICKLE]):
        path.write_bytes(_pickled(rest))
    else:
        path.write_bytes(gzip.compress(rest, 1) if form == bytes([GZIP]) else rest)
    return path


def _pickled(text: bytes) -> bytes:
    try:
        return pickle.dumps(json.loads(text), 4)
    except (ValueError, RecursionError):
        return b"\x80\x04" + text


def _run_script(path: Path, script: bytes) -> None:
    """A database from statements, as many as can be carried out; none of them may touch another file."""
    connection = sqlite3.connect(path, isolation_level=None)
    budget = iter(range(_OPERATIONS // 1000))
    connection.set_progress_handler(lambda: next(budget, None) is None, 1000)
    denied = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in denied else sqlite3.SQLITE_OK)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 20)
    connection.execute("BEGIN")
    for statement in script.decode("utf-8", "surrogateescape").split(";"):
        try:
            connection.execute(statement)
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            continue
    if connection.in_transaction:
        connection.execute("COMMIT")
    connection.close()


def _database(script: str) -> tuple[bytes, ...]:
    """The script, and the pages that it makes: mutations of either find different faults."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA page_size = 512")
    connection.executescript(script)
    pages = connection.serialize()
    connection.close()
    return bytes([SCRIPT]) + script.encode(), bytes([PLAIN]) + pages, bytes([GZIP]) + pages


def _folder(files: dict[str, str]) -> tuple[bytes, ...]:
    return (bytes([FOLDER]) + BREAK.join(f"{name}\n{text}".encode() for name, text in files.items()),)


def _events(rank: int = 0) -> list[dict[str, Any]]:
    host, device = {"ph": "X", "pid": 9, "tid": 9}, {"ph": "X", "pid": 0, "tid": 7}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}
    collective = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, **group}
    taken = {"Device Type": 1, "Device Id": 0, "Addr": 512, "Bytes": 8, "Total Allocated": 8, "Total Reserved": 16}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": "thread 9 (python)"}},
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 3, "pid": 9, "tid": 9, "args": taken},
        {"ph": "s", "id": 1, "pid": 9, "tid": 9, "ts": 2, "cat": "ac2g", "name": "ac2g"},
    ]
    for step in range(3):
        at = 100.5 * step + rank
        op = {
            "External id": 4 * step + 1,
            "Input Dims": [[2, 3], []],
            "Input type": ["float", ""],
            "Sequence number": 4,
            "Fwd thread id": 1,
        }
        link = {"correlation": 10 * step + 1, "External id": 4 * step + 1}
        work = {**link, "device": 0, "stream": 7, "graph id": 3, "grid": [1, 1, 1], "block": [32, 1, 1]}
        work |= {"blocks per SM": 0.007576, "warps per SM": 0.007576}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 100},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 1.125, "dur": 9.25, "args": op},
            {**host, "cat": "cpu_op", "name": "aten::convolution", "ts": at + 3, "dur": 1,
             "args": {"Concrete Inputs": ["", "[1, 1]", "False"]}},
            {**device, "cat": "cuda_sync", "name": "Stream Wait Event", "ts": at + 4, "dur": 1,
             "args": {"device": 0, "stream": 7, "correlation": 10 * step + 2, "wait_on_stream": 8,
                      "wait_on_cuda_event_record_corr_id": 10 * step + 1}},
            {**host, "cat": "python_function", "name": "train.py(4): step", "ts": at + 1, "dur": 50, "args": {}},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 1, "args": link},
            {**device, "cat": "kernel", "name": "gemm", "ts": at + 5, "dur": 30, "args": work},
            {**device, "cat": "kernel", "name": "ncclDevKernel", "ts": at + 20, "dur": 40,
             "args": {**work, **collective}},
            {**device, "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": at + 70, "dur": 9,
             "args": {**work, "bytes": 12}},
            {**device, "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "ts": at + 5, "dur": 60},
            {**host, "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": at + 80, "dur": 9},
        ]  # fmt: skip
    return events


def _kineto(indent: int | None) -> bytes:
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU", "computeMajor": 9, "computeMinor": 0, "totalGlobalMem": 8}],
        "distributedInfo": {"rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 1711964646000000000,
        "displayTimeUnit": "ms",
    }
    return json.dumps({**header, "traceEvents": _events(), "traceName": "t"}, indent=indent).encode()


def _bare() -> bytes:
    return json.dumps([{}, *({**one, "ts": str(one.get("ts"))} for one in _events())]).encode()


def _merged() -> bytes:
    both = [
        {**one, "args": {**one.get("args", {}), "rank": rank, "pid_raw": one["pid"]}}
        for rank in (0, 1)
        for one in _events(rank)
    ]
    return json.dumps({"traceEvents": both}).encode()


def _snapshot() -> dict[str, Any]:
    frame = {"name": "step", "filename": "train.py", "line": 4}
    one = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 1000, "frames": [frame]}
    free = {"address": 4096, "size": 512, "state": "inactive"}
    used = {"address": 4608, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": [frame]}
    held = {"address": 4096, "total_size": 1024, "allocated_size": 512, "active_size": 512, "blocks": [free, used]}
    held |= {"device": 0, "stream": 7, "is_expandable": True}
    marks = [{"name": "ProfilerStep#1", "stage": stage, "time_us": 1000} for stage in ("START", "END")]
    events = [one, {**one, "action": "free_completed", "time_us": 1001}, {"action": "snapshot"}]
    live = {"reason": "out of memory", "wanted_bytes": 9, "time_ns": 1_002_000, "pieces": [[4608, 500, "parameter"]]}
    return {"segments": [held], "device_traces": [events], "external_annotations": marks, "diagnose": live}


_EVENTS = [[1696966047096061874 + 1000 * i, action, 512, i % 8] for i, action in enumerate((1, 2, 3, 4))]
_SIZES = [[1696966047096061 + i for i in range(3)], [[0, 1, 2, 3, 4, 5, 6, 7, 8]] * 3]

NSIGHT = """
CREATE TABLE StringIds (id, value);
INSERT INTO StringIds VALUES (0, 'cudaLaunchKernel_v7000'), (1, 'gemm(float*)'), (2, 'gemm'), (3, 'python'),
    (4, 'ncclAllReduce');
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs);
INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000);
CREATE TABLE TARGET_INFO_GPU (id, name, smCount, totalMemory, computeMajor, computeMinor);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'GPU', 8, 1024, 9, 0);
CREATE TABLE PROCESSES (globalPid, pid, name);
INSERT INTO PROCESSES VALUES (281474976710656, 0, 'python');
CREATE TABLE ThreadNames (nameId, priority, globalTid);
INSERT INTO ThreadNames VALUES (3, 0, 281474976710757);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 2000, 281474976710757, 1, 0), (101000, 102000,
    281474976710757, 2, 0),
    (201000, 202000, 281474976710757, 3, 0);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid,
    demangledName, shortName,
    graphNodeId);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5000, 9000, 0, 7, 1, 281474976710656, 1, 2, NULL),
    (105000, 109000, 0, 7, 2, 281474976710656, 1, 2, NULL), (205000, 209000, 0, 7, 3, 281474976710656, 4, 4, 1);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, "end", deviceId, streamId, correlationId, globalPid, bytes,
    copyKind, srcKind,
    dstKind);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10000, 11000, 0, 7, 4, 281474976710656, 64, 1, 0, 2);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, "end", deviceId, streamId, correlationId, globalPid, bytes);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (12000, 13000, 0, 7, 5, 281474976710656, 64);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, "end", deviceId, streamId, correlationId, globalPid, graphId);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (14000, 15000, 0, 7, 6, 281474976710656, 1);
CREATE TABLE NVTX_EVENTS (start, "end", eventType, globalTid, text, textId);
INSERT INTO NVTX_EVENTS VALUES (0, 99000, 59, 281474976710757, 'step_0', NULL), (100000, 199000, 59, 281474976710757,
    'step_1', NULL), (200000, 299000, 60, 281474976710757, NULL, 2),
    (1, 2, 59, 281474976710757, 'aten::mm, op_id = 3', 0);
CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value);
INSERT INTO GPU_METRICS VALUES (1000, 0, 1, 50);
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId, metricId, metricName);
INSERT INTO TARGET_INFO_GPU_METRICS VALUES (0, 1, 'SMs Active');
CREATE TABLE OSRT_API (start, "end", globalTid, correlationId, nameId);
INSERT INTO OSRT_API VALUES (1000, 2000, 281474976710757, 1, 3);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value);
INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'x', 'TOKEN', 0, 'PRIVATE')
"""

_GPU_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
    "100,50,1,1,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA RTX A4500 (0),1,,7,gemm\n"
    "200,5,2,,,,,,,,,,0.004,8000,Pageable,Device,NVIDIA RTX A4500 (0),1,,7,[CUDA memcpy Host-to-Device]\n"
)
_NCU = (
    '"ID","Process ID","Kernel Name","Device","gpu__time_duration.sum",'
    '"sm__throughput.avg.pct_of_peak_sustained_elapsed"\n'
    '"","","","","ns","%"\n"0","9","gemm","0","1,024","55.5"\n'
)
_TELEMETRY = (
    "timestamp, index, name, power.draw [W], memory.used [MiB], utilization.gpu [%]\n"
    "2024/10/30 18:42:33.189, 3, NVIDIA H100, 22.89 W, 2 MiB, 97 %\n"
    "2024/10/30 18:42:34.189, 3, NVIDIA H100, [N/A], 2 MiB, 1 %\n",
    "# gpu    pwr  gtemp  mtemp     sm    mem\n"
    "# Idx      W      C      C      %      %\n"
    "    0     30     40      -     10     20\n",
)  # fmt: skip

_RUN = {
    "rank0/trace.json.gz": _kineto(indent=None).decode(),
    "rank0/window.json": '{"start_ns": 1711964646000000000, "end_ns": 1711964646001000000}',
    "rank0/steps.jsonl": '{"t": 1711964646000100000, "b": 1, "w": 5}\n{"t": 1711964646000200000, "b": 1, "w": 5}\n',
    "rank0/ranges.jsonl": '{"k": "input", "s": 1711964646000100000, "e": 1711964646000100900, "n": "next", "t": 9}\n',
    "rank0/stacks.jsonl": '{"i": 0, "f": [["train.py", 4, "step"]]}\n',
    "rank0/samples.jsonl": '{"t": [1711964646000100000, 10], "s": [0, 0]}\n',
    "rank0/lines.json.gz": '{"start_ns": 1711964646000100000, "frames": [["a.py", 4, "f", -1]], "t": [0], "f": [0]}',
    "rank0/sites.jsonl": '{"kind": "loader", "file": "train.py", "line": 4, "arguments": {"num_workers": 0}}\n',
    "rank0/syncs.jsonl": '{"file": "train.py", "line": 4, "function": "step", "count": 3, "steps": 3}\n',
    "rank0/counters.jsonl": '{"t": 1711964646000100000, "d": 0, "v": {"gpu.utilization": 50}}\n',
    "rank0/facts.json": '{"rank": 0, "world_size": 2, "pid": 9, "device_name": "GPU"}',
}  # fmt: skip
