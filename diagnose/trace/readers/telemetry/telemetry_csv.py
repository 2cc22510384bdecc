"""Reads what samplers beside a run wrote of its GPUs: `nvidia-smi dmon`, query CSV, DCGM, loggers of one's own.

    # gpu     pwr  gtemp     sm    mem          timestamp, index, power.draw [W]         GPUId,TimeStampUs,Field,Values
    # Idx       W      C      %      %          2024/10/30 18:42:33.189, 0, 22.89 W      0,1730313753189000,155,22.89
        0      71     45     98     40

All give counters, under the names of `diagnose run` where it reads the same thing.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from diagnose.errors import NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.reader import Reader
from diagnose.trace.schema import MISSING, Counters
from diagnose.units import NS_PER_S, NS_PER_US

_MOST_BYTES = 256 << 20
_REMEDY = "give a shorter recording, or read it with `diagnose analyze --any-size`"
_MIB = float(1 << 20)
_FIRST_LINES = 100  # by then every device of a host was read

# What a column is called by dmon, by the query interface and by DCGM's numbers, with the factor to our unit.
_METRICS: tuple[tuple[re.Pattern[str], str, float], ...] = tuple(
    (re.compile(pattern), name, factor)
    for pattern, name, factor in (
        (r"sm|utilization_gpu(_percent)?|gpu_util(ization)?(_percent)?|203", "gpu.utilization", 1.0),
        (r"mem|utilization_memory(_percent)?|204", "gpu.memory_utilization", 1.0),
        (r"fb|memory_used(_mi?b)?|252", "gpu.memory_used_bytes", _MIB),
        (r"memory_total(_mi?b)?|250", "gpu.memory_total_bytes", _MIB),
        (r"pwr|power_draw(_instant|_average)?|power(_w|_watts?)?|155", "gpu.power_watts", 1.0),
        (r"gtemp|temperature_gpu|temp(erature)?(_c)?|150", "gpu.temperature_celsius", 1.0),
        (r"pclk|clocks(_current)?_(sm|gr|graphics)|100", "gpu.sm_clock_mhz", 1.0),
        (r"mclk|clocks(_current)?_mem(ory)?|101", "gpu.memory_clock_mhz", 1.0),
        (r"clocks_(throttle|event)_reasons_active|112", "gpu.throttle_reasons", 1.0),
        (r"rxpci", "gpu.pcie_received_mib_s", 1.0),
        (r"txpci", "gpu.pcie_sent_mib_s", 1.0),
        (r"1002", "gpu.sm_activity", 100.0),
        (r"1003", "gpu.sm_occupancy", 100.0),
        (r"1004", "gpu.tensor_activity", 100.0),
        (r"1005", "gpu.dram_activity", 100.0),
    )
)
_TIME = re.compile(r"timestamp|time_?stamp_?us|time|date_?time")
_DEVICE = re.compile(r"index|gpu_?(index|id|idx)?|idx|device")
_TEXTS = re.compile(r"name|uuid|gpu_(name|uuid|bus_id|serial)|pci_.*|driver_version|serial|pstate")
_NOT_A_CELL = re.compile(r"\[?(n/?a|not supported|unknown error|insufficient permissions)\]?|-|", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|0[xX][0-9a-fA-F]+)\s*(?:%|[A-Za-z°/]{0,5})\s*")


@dataclass
class _Rows:
    """Counters as they are found."""

    time_ns: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0

    def add(self, time_ns: int, device: int, column: str, cell: str) -> None:
        """Take in a cell; one without a value is left out."""
        name, factor = _metric(column)
        value = _number(cell)
        if value is None:
            return
        self.time_ns.append(time_ns)
        self.device.append(device)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.value.append(value * factor)


def read(path: Path) -> list[Trace]:
    """The counters, as the trace of no rank. Raises NotATrace where no value can be read."""
    text = read_whole(path, at_most(_MOST_BYTES), _REMEDY).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    rows = _Rows()
    (_take_dmon if lines and lines[0].lstrip().startswith("#") else _take_csv)(lines, rows)
    if not rows.value:
        raise NotATrace(path, "is a table of GPU telemetry without a single value")
    timed = [time_ns for time_ns in rows.time_ns if time_ns != MISSING]
    warnings = []
    if rows.unreadable:
        warnings.append(f"{path}: {rows.unreadable} lines are incomplete and were left out")
    if len(timed) < len(rows.time_ns):
        warnings.append(f"{path}: no times are recorded with the values (dmon: add -o DT); only their order is known")
    return [
        Trace(
            source=str(path),
            names=tuple(rows.names),
            window_ns=(min(timed), max(timed)) if timed else None,
            counters=Counters.build(
                {"time_ns": rows.time_ns, "name": rows.name, "device": rows.device, "value": rows.value}
            ).sorted_by_start(),
            warnings=tuple(warnings),
        )
    ]


def _take_dmon(lines: Iterable[str], rows: _Rows) -> None:
    columns: list[str] = []
    for line in lines:
        cells = line.replace("#", " ").split()
        if line.lstrip().startswith("#"):
            # The header comes again every twenty rows, and under it the units.
            if any(cell.lower() in ("gpu", "idx") for cell in cells) and "Idx" not in cells:
                columns = [cell.lower() for cell in cells]
            continue
        if len(cells) != len(columns):
            rows.unreadable += 1
            continue
        row = dict(zip(columns, cells, strict=True))
        time_ns = _time_ns(f"{row.pop('date', '')} {row.pop('time', '')}".strip())
        device = _ordinal(row.pop("gpu", ""))
        for column, cell in row.items():
            rows.add(time_ns, device, column, cell)


def _take_csv(lines: Sequence[str], rows: _Rows) -> None:
    table = csv.reader(lines, skipinitialspace=True)
    columns = [_plain(cell) for cell in next(_safely(table, rows))]
    time = _first(columns, _TIME.fullmatch)
    devices = [place for place, column in enumerate(columns) if _DEVICE.fullmatch(column)]
    device = max(devices, key=lambda place: _distinct(lines, place, columns), default=None)
    skipped = {time, *devices} | {place for place, column in enumerate(columns) if _TEXTS.fullmatch(column)}
    by_field = "field" in columns and _first(columns, lambda column: column in ("value", "values")) is not None
    for cells in _safely(table, rows):
        if len(cells) != len(columns):
            rows.unreadable += 1
            continue
        time_ns = _time_ns(cells[time]) if time is not None else MISSING
        ordinal = _ordinal(cells[device]) if device is not None else MISSING
        if by_field:
            value = _first(columns, lambda column: column in ("value", "values"))
            rows.add(time_ns, ordinal, _plain(cells[columns.index("field")]), cells[value or 0])
            continue
        for place, column in enumerate(columns):
            if place not in skipped:
                rows.add(time_ns, ordinal, column, cells[place])


def _distinct(lines: Sequence[str], place: int, columns: Sequence[str]) -> tuple[int, bool]:
    """Return how many devices a column tells apart in the first lines, and whether it is named for that."""
    cells = [
        row[place]
        for row in _safely(csv.reader(lines[1:_FIRST_LINES], skipinitialspace=True), _Rows())
        if place < len(row)
    ]
    return len(set(cells)), "index" in columns[place] or "id" in columns[place]


def _safely(table: Iterator[list[str]], rows: _Rows) -> Iterator[list[str]]:
    """The rows of a table; one that the csv module refuses (a cell of 128 KiB, a NUL) is counted and skipped."""
    while True:
        try:
            yield next(table)
        except StopIteration:
            return
        except csv.Error:
            rows.unreadable += 1


def _first(columns: Sequence[str], test: Callable[[str], object]) -> int | None:
    return next((place for place, column in enumerate(columns) if test(column)), None)


@lru_cache(maxsize=4096)
def _plain(header: str) -> str:
    """A header in one spelling: `power.draw [W]` is `power_draw`."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"\[[^]]*\]", "", header.lower())).strip("_")[:80]


@lru_cache(maxsize=4096)
def _metric(column: str) -> tuple[str, float]:
    known = ((name, factor) for pattern, name, factor in _METRICS if pattern.fullmatch(column))
    return next(known, (f"gpu.{column}", 1.0))


@lru_cache(maxsize=65536)
def _number(cell: str) -> float | None:
    match = None if _NOT_A_CELL.fullmatch(cell.strip()) else _NUMBER.fullmatch(cell)
    if match is None:
        return None
    return float(int(match[1], 16)) if match[1].lower().startswith("0x") else float(match[1])


def _ordinal(cell: str) -> int:
    digits = cell.strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else MISSING


@lru_cache(maxsize=65536)
def _time_ns(cell: str) -> int:
    """A moment in any of the spellings; without a zone it is taken as UTC. -1 where it is none."""
    text = cell.strip()
    if re.fullmatch(r"\d{9,19}(\.\d{1,9})?", text):
        return _epoch_ns(text)
    text = re.sub(r"^(\d{4})/?(\d{2})/?(\d{2})(?=\s)", r"\1-\2-\3", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return MISSING
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (zoned - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * NS_PER_US


def _epoch_ns(text: str) -> int:
    """Since the epoch in s, ms, µs or ns, told apart by the magnitude."""
    whole, _, fraction = text.partition(".")
    scale = next(scale for digits, scale in ((11, NS_PER_S), (14, 10**6), (17, 10**3), (20, 1)) if len(whole) <= digits)
    ns = int(whole) * scale + int(fraction.ljust(9, "0")) * scale // 10**9 if fraction else int(whole) * scale
    return ns if ns < 1 << 63 else MISSING


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    if b"\0" in head[:4096]:
        return False
    first = head.decode("utf-8", "replace").lstrip().split("\n", 1)[0].strip()
    if first.startswith("#"):
        words = first.lstrip("# ").lower().split()
        return "gpu" in words and any(_metric(word)[0] != f"gpu.{word}" for word in words)
    columns = [_plain(cell) for cell in first.split(",")]
    if "gpuid" in columns and "field" in columns:
        return True
    if not any(_TIME.fullmatch(column) for column in columns):
        return False
    return any(_metric(column)[0] != f"gpu.{column}" for column in columns)


READER = Reader("GPU telemetry", _sniffs, read)
