"""Reads <pid>_results.json of rocprofv3.

    {"rocprofiler-sdk-tool": [{"metadata": {"pid": …}, "agents": […], "strings": {…}, "kernel_symbols": […],
                               "buffer_records": {"kernel_dispatch": […], "hip_api": […], "memory_copy": […], …}}]}

Records name their kind and operation by number, which `strings` resolves; kernels by `kernel_id`. The tables are
decoded one by one, and what is not needed (the command line, the environment in the configuration) never is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from diagnose.errors import InputError
from diagnose.trace import Trace
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.io.truncated_json import UNDECODABLE, decode_whole
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.meaning import Domain, direction_of, domain_of
from diagnose.trace.readers.rocm.recording import Agent, Recording
from diagnose.trace.readers.rocm.rows import Process
from diagnose.trace.schema import MISSING, CopyDirection

LARGEST_BYTES = 2 << 30
_REMEDY = (
    "record the run with --output-format rocpd, which is read in pieces, or read it with `diagnose analyze --any-size`"
)
_BATCH = 50_000
_MARK = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')

_GPU = 2
_CALLS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")


class _Handle(Struct, gc=False, frozen=True):
    handle: int = MISSING


class _Bank(Struct, gc=False):
    size_in_bytes: int = 0


class _Agent(Struct, gc=False):
    id: _Handle = _Handle()
    type: int = 0
    logical_node_type_id: int = MISSING
    name: str = ""
    product_name: str = ""
    mem_banks: list[_Bank] = []


class _Symbol(Struct, gc=False):
    kernel_id: int = MISSING
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Kind(Struct, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Message(Struct, gc=False):
    key: int = MISSING
    value: str = ""


class _Strings(Struct, gc=False):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class _Metadata(Struct, gc=False):
    pid: int = MISSING


class _Correlation(Struct, gc=False, frozen=True):
    internal: int = MISSING


class _Dispatch(Struct, gc=False, frozen=True):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = MISSING


class _Record(Struct, gc=False):
    """One row of any of the tables."""

    start_timestamp: int
    end_timestamp: int
    kind: int = MISSING
    operation: int = MISSING
    thread_id: int = MISSING
    correlation_id: _Correlation = _Correlation()
    stream_id: _Handle | int = _Handle()
    dispatch_info: _Dispatch = _Dispatch()
    src_agent_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    bytes: int = MISSING


class _Tool(Struct, gc=False):
    """One process. Members that are not named here are skipped."""

    metadata: Raw = Raw(b"{}")
    agents: Raw = Raw(b"[]")
    strings: Raw = Raw(b"{}")
    kernel_symbols: Raw = Raw(b"[]")
    buffer_records: dict[str, Raw] = {}


class _Document(Struct, gc=False):
    tools: list[_Tool] = msgspec.field(default_factory=list, name="rocprofiler-sdk-tool")


T = TypeVar("T")


def read(path: Path) -> list[Trace]:
    """One trace for each process in the document."""
    data = read_whole(path, at_most(LARGEST_BYTES), _REMEDY)
    recording = Recording(path)
    refusal = InputError(
        path,
        "is a rocprofv3 recording that is damaged; rocprofv3 writes it when the program ends: record the run again",
    )
    document, cut_off = decode_whole(data, _Document, b"]}}]}", refusal)
    if cut_off:
        recording.warnings.append("the file ends in the middle; the end of the recording is missing")
    for number, tool in enumerate(document.tools):
        pid = _decoded(tool.metadata, _Metadata, _Metadata()).pid
        _Reading(recording, tool, recording.process((number, pid), pid)).take()
    return recording.traces("is a rocprofv3 recording in which no kernel, copy or call was recorded")


class _Reading:
    """One process's tables, with what their numbers stand for."""

    def __init__(self, recording: Recording, tool: _Tool, process: Process) -> None:
        self.recording, self.tool, self.process = recording, tool, process
        strings = self._table("strings", tool.strings, _Strings, _Strings())
        self.kinds = strings.buffer_records
        self.messages = {message.key: message.value for message in strings.marker_api}
        symbols = self._table("kernel_symbols", tool.kernel_symbols, list[_Symbol], [])
        self.symbols = {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in symbols}
        for agent in self._table("agents", tool.agents, list[_Agent], []):
            if agent.type == _GPU:
                memory = sum(bank.size_in_bytes for bank in agent.mem_banks)
                known = Agent(agent.logical_node_type_id, agent.product_name or agent.name, memory or None)
                recording.agents[agent.id.handle] = known

    def _table(self, name: str, raw: Raw, kind: type[T], otherwise: T) -> T:
        found: T | None = _decoded(raw, kind, None)
        if found is None:
            self.recording.warnings.append(f"{name} make no sense; what they name is unknown")
        return otherwise if found is None else found

    def take(self) -> None:
        """All tables, into the process."""
        for rows in self._rows("kernel_dispatch"):
            info = [row.dispatch_info for row in rows]
            self.process.add_kernels(
                *_times(rows),
                [self.symbols.get(one.kernel_id) or "unknown kernel" for one in info],
                self.recording.ordinals([one.agent_id.handle for one in info]),
                _streams(rows),
                [one.queue_id.handle for one in info],
                [row.correlation_id.internal for row in rows],
            )
        for rows in self._rows("memory_copy"):
            names = [self._operation(row) for row in rows]
            self.process.add_copies(
                *_times(rows),
                names,
                self.recording.ordinals([_gpu_side(row, name) for row, name in zip(rows, names, strict=True)]),
                _streams(rows),
                [row.correlation_id.internal for row in rows],
                [row.bytes for row in rows],
            )
        for table in _CALLS:
            for rows in self._rows(table):
                self.process.add_host(
                    table,
                    *_times(rows),
                    [self._call(table, row) for row in rows],
                    [row.thread_id for row in rows],
                    [row.correlation_id.internal for row in rows],
                )

    def _call(self, table: str, row: _Record) -> str:
        message = self.messages.get(row.correlation_id.internal) if domain_of(table) is Domain.MARKER else None
        return message or self._operation(row)

    def _operation(self, row: _Record) -> str:
        try:
            return self.kinds[row.kind].operations[row.operation] if row.kind >= 0 <= row.operation else "unknown"
        except IndexError:
            return "unknown"

    def _rows(self, table: str) -> Iterator[Sequence[_Record]]:
        raw = self.tool.buffer_records.get(table, Raw(b"[]"))
        try:
            rows = msgspec.json.decode(raw, type=list[_Record])
        except UNDECODABLE:
            rows = self._one_by_one(table, raw)
        for start in range(0, len(rows), _BATCH):
            yield rows[start : start + _BATCH]

    def _one_by_one(self, table: str, raw: Raw) -> list[_Record]:
        """The records that are as they should be, where some are not."""
        entries = _decoded(raw, list[Raw], [])
        rows = [_decoded(entry, _Record, None) for entry in entries]
        whole = [row for row in rows if row is not None]
        self.recording.warnings.append(f"{len(rows) - len(whole)} records of {table} make no sense and were left out")
        return whole


def _decoded(raw: Raw, kind: type[T], otherwise: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE:
        return otherwise


def _times(rows: Sequence[_Record]) -> tuple[list[int], list[int]]:
    return [row.start_timestamp for row in rows], [row.end_timestamp for row in rows]


def _streams(rows: Sequence[_Record]) -> list[int]:
    return [row.stream_id if isinstance(row.stream_id, int) else row.stream_id.handle for row in rows]


def _gpu_side(row: _Record, name: str) -> int:
    outward = direction_of(name) is CopyDirection.DEVICE_TO_HOST
    return (row.src_agent_id if outward else row.dst_agent_id).handle


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    return _MARK.match(head) is not None


READER = Reader("rocprofv3 JSON", _sniffs, read)
