"""Reads the table `cuda_gpu_trace` that `nsys stats --format csv` prints: the device's work, without the host.

    Start (ns),Duration (ns),CorrId,GrdX,…,Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name

Other reports may stand in the same file, with prose between them; they are sums, and passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path

from diagnose.errors import NotATrace
from diagnose.model import Facts
from diagnose.trace import Trace
from diagnose.trace.readers.columns import Interned, ids_of
from diagnose.trace.readers.io.csv_rows import CsvRows
from diagnose.trace.readers.kineto.meaning import copy_path
from diagnose.trace.readers.reader import Reader, rank_in_name
from diagnose.trace.schema import MISSING, CopyDirection, DeviceWork, Memory, WorkKind

_HEADER = re.compile(rb'(?m)^\W{0,4}"?Start ?\((?:ns|nsec|us|usec|ms|msec|s|sec)\)"?,"?Duration ?\(')
_UNIT = re.compile(r"(.*?) ?\((\w+)\)$")
_NS = {"ns": 1, "nsec": 1, "us": 10**3, "usec": 10**3, "ms": 10**6, "msec": 10**6, "s": 10**9, "sec": 10**9}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DEVICE = re.compile(r"(.*?) ?\((\d{1,5})\)$")
_OPERATION = re.compile(r"\[CUDA (mem\w+)\s*(?:Unified )?([^\]]*)\]", re.IGNORECASE)
_MOST_NS = 1 << 62


@dataclass
class _Columns:
    """The table's rows so far."""

    names: Interned = field(default_factory=Interned)
    devices: Interned = field(default_factory=Interned)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    unreadable: int = 0


def read(path: Path) -> list[Trace]:
    """One trace with device work alone. Raises NotATrace where the table has no row."""
    table, found = CsvRows(path), _Columns()
    header: dict[str, tuple[int, str]] | None = None
    columns = 0
    for batch in table:
        for row in batch:
            if row and row[0].startswith("Start"):
                header, columns = _header(row), len(row)
            elif header is not None and len(row) == columns:
                _add(found, row, header)
            elif any(row):
                header = None  # another report, or prose
    if not found.rows:
        raise NotATrace(path, "is a cuda_gpu_trace of nsys stats without any row; record the run again")
    return [_trace(path, found, table.damage)]


def _header(row: list[str]) -> dict[str, tuple[int, str]]:
    """Position and unit of each column by its name."""
    parts = [(_UNIT.match(cell.strip()), cell.strip()) for cell in row]
    return {match[1] if match else cell: (i, match[2] if match else "") for i, (match, cell) in enumerate(parts)}


def _add(found: _Columns, row: list[str], header: dict[str, tuple[int, str]]) -> None:
    def cell(name: str) -> str:
        return row[header[name][0]].strip() if name in header else ""

    start, duration = (_scaled(cell(name), _NS.get(header.get(name, (0, ""))[1], 0)) for name in ("Start", "Duration"))
    if start is None or duration is None or not 0 <= duration < _MOST_NS or not abs(start) < _MOST_NS:
        found.unreadable += 1
        return
    name, kind, direction, memory = _work(cell("Name"), cell("SrcMemKd"), cell("DstMemKd"))
    device = _DEVICE.match(cell("Device"))
    ordinal = int(device[2]) if device else MISSING
    if device:
        found.devices[device[1]]
    size = (
        _scaled(cell("Bytes"), _BYTES.get(header.get("Bytes", (0, ""))[1], 0)) if kind is not WorkKind.KERNEL else None
    )
    stream, correlation = ids_of([cell("Strm") or MISSING, cell("CorrId") or MISSING]).tolist()
    found.rows.append(
        (
            start,
            start + duration,
            int(kind),
            found.names[name],
            ordinal,
            stream,
            correlation,
            size or MISSING,  # sizes are rounded to thousandths of a megabyte: 0.000 is unknown, not nothing
            int(direction),
            int(memory),
        )
    )


def _work(name: str, source: str, target: str) -> tuple[str, WorkKind, CopyDirection, Memory]:
    """Return a row's kind of work, with the name that torch.profiler would give it."""
    operation = _OPERATION.match(name)
    if operation is None:
        return name or "(unnamed)", WorkKind.KERNEL, CopyDirection.UNKNOWN, Memory.UNKNOWN
    if operation[1].lower() == "memset":
        return f"Memset ({source or 'Device'})", WorkKind.SET, CopyDirection.UNKNOWN, Memory.UNKNOWN
    way = re.sub(r"(Host|Device|Peer|Array)-to-(Host|Device|Peer|Array)", r"\1to\2", operation[2].strip(), flags=re.I)
    short = re.sub(r"(\w)\w*to(\w)\w*", r"\1to\2", way)
    title = f"Memcpy {short} ({source or 'Unknown'} -> {target or 'Unknown'})"
    return title, WorkKind.COPY, *copy_path(title, None)


def _scaled(text: str, unit: int) -> int | None:
    """A decimal in whole nanoseconds or bytes; None where it is no number or its unit is not known."""
    try:
        value = Decimal(text.replace(",", "")) * unit if unit and len(text) < 40 else None
        return None if value is None or not value.is_finite() or value.adjusted() > 20 else round(value)
    except InvalidOperation:
        return None


def _trace(path: Path, found: _Columns, damage: str | None) -> Trace:
    columns = ("start_ns", "end_ns", "kind", "name", "device", "stream", "correlation", "size_bytes", "direction")
    values = zip(*found.rows, strict=True)
    device = DeviceWork.build(dict(zip((*columns, "host_memory"), map(list, values), strict=True))).sorted_by_start()
    warnings = [f"{path}: {damage}"] if damage else []
    if found.unreadable:
        warnings.append(f"{path}: {found.unreadable} rows have no time that can be read and were left out")
    names = tuple(found.devices)
    return Trace(
        source=str(path),
        names=tuple(found.names),
        rank=rank_in_name(path),
        device_names=names,
        window_ns=(int(device.start_ns[0]), int(device.end_ns.max())),
        device=device,
        facts=Facts(device_name=names[0]) if names else Facts(),
        warnings=tuple(warnings),
    )


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    return b"\0" not in head[:4096] and _HEADER.search(head) is not None


READER = Reader("nsys stats cuda_gpu_trace", _sniffs, read)
