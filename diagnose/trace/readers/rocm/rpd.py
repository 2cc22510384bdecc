"""Reads .rpd files of rocmProfileData (schema 2): SQLite with `rocpd_op` and `rocpd_api`.

    rocpd_op    device work: `KernelExecution`, `Task` (kernels of a graph), `CopyHostToDevice`, `FillBuffer`, …
    rocpd_api   host calls, and annotations as `UserMarker`      rocpd_api_ops   which call caused which work
    ext_autogradapi   PyTorch's operators, each also a `UserMarker`

The tables of rocprofv3's database begin with the same word and are others: see `rocpd`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers.io.sqlite_file import MAGIC, Columns, Database, open_database, table_names
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.recording import Recording
from diagnose.trace.readers.rocm.rocprof_db import each_process
from diagnose.trace.readers.rocm.rows import Process
from diagnose.trace.schema import MISSING

_KERNELS = ("KernelExecution", "Task", "Kernel")
_BARRIER = ("Barrier", "Marker")
_MARKER = "UserMarker"

_OPS = """
    SELECT api.pid, op.start, op.end, op.gpuId, op.queueId, op.description_id, op.opType_id, link.api_id, {size}
    FROM rocpd_op AS op
    LEFT JOIN (SELECT op_id, min(api_id) AS api_id FROM rocpd_api_ops GROUP BY op_id) AS link ON link.op_id = op.id
    LEFT JOIN rocpd_api AS api ON api.id = link.api_id {copies}
"""
_COPIES = "LEFT JOIN rocpd_copyapi AS copy ON copy.api_ptr_id = link.api_id"
_CALLS = """
    SELECT api.pid, api.start, api.end, api.tid, api.apiName_id, api.args_id, api.id, {columns}
    FROM rocpd_api AS api {operators}
"""
_OPERATORS = "LEFT JOIN ext_autogradapi AS torch ON torch.api_ptr_id = api.id"


def read(path: Path) -> list[Trace]:
    """One trace for each process in the database."""
    recording = Recording(path)
    with open_database(path) as database:
        for table, columns in (
            ("rocpd_op", ("id", "start", "end", "gpuId", "queueId", "description_id", "opType_id")),
            ("rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")),
            ("rocpd_api_ops", ("api_id", "op_id")),
        ):
            if not database.has(table, *columns):
                raise InputError(path, f"looks like a database of rocmProfileData, but its {table} is not what it was")
        strings = database.mapping("rocpd_string", "id", "string")
        _read_calls(recording, database, strings)
        _read_ops(recording, database, strings)
    return recording.traces("is a database of rocmProfileData in which nothing was recorded")


def _read_ops(recording: Recording, database: Database, strings: dict[Any, Any]) -> None:
    sized = database.has("rocpd_copyapi", "api_ptr_id", "size")
    query = _OPS.format(size="copy.size" if sized else "NULL", copies=_COPIES if sized else "")

    def add(process: Process, part: Columns) -> None:
        types = [str(strings.get(number, "")) for number in part[6]]
        kernels = [row for row, name in enumerate(types) if name in _KERNELS]
        copies = [
            row for row, name in enumerate(types) if name and name not in _KERNELS and not name.startswith(_BARRIER)
        ]
        _, begin, end, gpu, queue, names, _, call, _ = _rows(part, kernels)
        name = [strings.get(number) or "unknown kernel" for number in names]
        process.add_kernels(begin, end, name, recording.numbered(gpu), queue, queue, call)
        _, begin, end, gpu, queue, _, _, call, size = _rows(part, copies)
        # Sizes over 2 GB are empty in the file.
        process.add_copies(begin, end, [types[row] for row in copies], recording.numbered(gpu), queue, call, size)

    # Work that no call is known for is the only process's, where there is but one.
    pids = [process.pid for process in recording.processes.values()]
    only = pids[0] if len(pids) == 1 else MISSING
    each_process(recording, database.query(query), add, otherwise=only)


def _read_calls(recording: Recording, database: Database, strings: dict[Any, Any]) -> None:
    operators = database.has("ext_autogradapi", "api_ptr_id", "autogradName_id", "sizes")
    columns = "torch.autogradName_id, torch.sizes" if operators else "NULL, NULL"
    query = _CALLS.format(columns=columns, operators=_OPERATORS if operators else "")

    def add(process: Process, part: Columns) -> None:
        names = [str(strings.get(number, "")) for number in part[4]]
        rows: dict[str, list[int]] = {"op": [], "MARKER_API": [], "HIP_API": []}
        for row, (name, torch) in enumerate(zip(names, part[7], strict=True)):
            rows["op" if torch is not None else "MARKER_API" if name == _MARKER else "HIP_API"].append(row)
        _, begin, end, tid, _, _, _, torch_name, sizes = _rows(part, rows["op"])
        process.add_ops(begin, end, [strings.get(number) for number in torch_name], tid, sizes)
        for domain in ("MARKER_API", "HIP_API"):
            _, begin, end, tid, name_id, arguments, call, _, _ = _rows(part, rows[domain])
            named = arguments if domain == "MARKER_API" else name_id
            process.add_host(domain, begin, end, [strings.get(number) for number in named], tid, call)

    each_process(recording, database.query(query), add)


def _rows(part: Columns, rows: list[int]) -> Columns:
    return tuple(tuple(column[row] for row in rows) for column in part)


def _sniffs(head: bytes, path: Path) -> bool:
    if not head.startswith(MAGIC):
        return False
    return {"rocpd_op", "rocpd_api"} <= table_names(path)


READER = Reader("rocmProfileData", _sniffs, read)
