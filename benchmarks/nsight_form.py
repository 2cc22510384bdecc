"""Writes a torch.profiler recording in the form that Nsight Systems exports, for tools that read nothing else.

    python benchmarks/nsight_form.py TRACE.json.gz OUT.sqlite

This is not an export of Nsight Systems. Both profilers take kernels, copies, sets and calls of the runtime from CUPTI;
here those of the one are put into the tables of the other (schema 3.24), and the profiler's operators and annotations
become NVTX ranges, as `nsys profile --pytorch=autograd-nvtx` would make them. What torch.profiler does not record stays
away: what the operating system did, CPU samples, registers. Times are whole nanoseconds, rounded from Kineto's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
"""As ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND number them in exports."""
_PUSH_POP = 59
_UNKNOWN_KIND = 7
_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SET = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALL = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = frozenset({"cpu_op", "user_annotation"})

Row = dict[str, Any]


def main() -> None:
    """Write the database that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    write(asked.trace, asked.out)


def write(trace: Path, out: Path) -> None:
    """Write the recording `trace` (torch.profiler, gzip) as the database `out`, which must not exist."""
    with gzip.open(trace) as packed:
        document = json.load(packed)
    strings: dict[str, int] = {}
    tables = _tables([event for event in document["traceEvents"] if event.get("ph") == "X"], strings)
    tables["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": int(document.get("baseTimeNanoseconds", 0))}]
    devices = document.get("deviceProperties", [])
    tables["TARGET_INFO_GPU"] = [
        {"id": one["id"], "name": one["name"], "smCount": one["numSms"], "totalMemory": one["totalGlobalMem"]}
        for one in devices
    ]
    tables["TARGET_INFO_CUDA_DEVICE"] = [{"gpuId": one["id"], "cudaId": one["id"], "pid": 1} for one in devices]
    tables["StringIds"] = [{"id": number, "value": text} for text, number in strings.items()]
    with sqlite3.connect(out) as connection:
        for name, rows in tables.items():
            _insert(connection, name, rows)
    connection.close()


def _tables(events: Iterable[Mapping[str, Any]], strings: dict[str, int]) -> dict[str, list[Row]]:
    tables: dict[str, list[Row]] = {_KERNEL: [], _COPY: [], _SET: [], _CALL: [], "NVTX_EVENTS": []}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    for event in events:
        category, told = event.get("cat"), event.get("args", {})
        start_ns = round(float(event["ts"]) * 1000)
        span = {"start": start_ns, "end": start_ns + round(float(event.get("dur", 0)) * 1000)}
        if category == "kernel":
            tables[_KERNEL].append(span | _on_device(told) | _kernel(told, text(event["name"])))
        elif category == "gpu_memcpy":
            tables[_COPY].append(span | _on_device(told) | _copy(event["name"], told))
        elif category == "gpu_memset":
            tables[_SET].append(span | _on_device(told) | {"bytes": told.get("bytes", 0), "value": 0})
        elif category in ("cuda_runtime", "cuda_driver"):
            call = {"correlationId": told.get("correlation"), "nameId": text(event["name"]), "returnValue": 0}
            tables[_CALL].append(span | call | {"globalTid": _thread(event)})
        elif category in _RANGES:
            mark = {"eventType": _PUSH_POP, "text": event["name"], "textId": None, "globalTid": _thread(event)}
            tables["NVTX_EVENTS"].append(span | mark)
    return tables


def _on_device(told: Mapping[str, Any]) -> Row:
    return {
        "deviceId": told.get("device", 0),
        "contextId": told.get("context", 1),
        "streamId": told.get("stream", 7),
        "correlationId": told.get("correlation"),
        "globalPid": 1 << 24,
    }


def _kernel(told: Mapping[str, Any], name_id: int) -> Row:
    shape = {
        f"{of}{axis}": size
        for of in ("grid", "block")
        for axis, size in zip("XYZ", told.get(of, [1, 1, 1]), strict=False)
    }
    return {"demangledName": name_id, "shortName": name_id, "graphNodeId": told.get("graph node id") or None, **shape}


def _copy(name: str, told: Mapping[str, Any]) -> Row:
    """`Memcpy HtoD (Pageable -> Device)`."""
    kind = next((number for word, number in COPY_KINDS.items() if word in name), 0)
    inside = name.partition("(")[2].rstrip(")")
    source, _, target = inside.partition(" -> ")
    return {
        "bytes": told.get("bytes", 0),
        "copyKind": kind,
        "srcKind": MEMORY_KINDS.get(source, _UNKNOWN_KIND),
        "dstKind": MEMORY_KINDS.get(target, _UNKNOWN_KIND),
    }


def _thread(event: Mapping[str, Any]) -> int:
    """Return a global thread id as nsys forms it: the process in the middle, the thread in the lowest 24 bits."""
    tid = str(event.get("tid", ""))
    return (1 << 24) | (int(tid) & 0xFFFFFF if tid.isdigit() else 0)


def _insert(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    if not rows:
        return
    columns = list(rows[0])
    connection.execute(f'CREATE TABLE "{table}" ({", ".join(f""" "{column}" """ for column in columns)})')
    marks = ", ".join("?" * len(columns))
    connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(c) for c in columns] for row in rows])


if __name__ == "__main__":
    main()
