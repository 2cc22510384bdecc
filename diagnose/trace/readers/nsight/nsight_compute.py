"""Reads what `ncu --csv` prints: hardware counters of single kernels, in either of its two forms.

    "ID",…,"Kernel Name",…,"gpu__time_duration.sum",…                    (--page raw) one row a launch, the first: units
    "ID",…,"Kernel Name",…,"Metric Name","Metric Unit","Metric Value"    one row a metric

Kernels are replayed and slowed down to be counted, so none of this is a timeline. The host's and the process's names
are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import NotATrace
from diagnose.model import Facts
from diagnose.trace import Trace
from diagnose.trace.readers.columns import Interned, ids_of
from diagnose.trace.readers.io.csv_rows import CsvRows
from diagnose.trace.readers.reader import Reader, rank_in_name
from diagnose.trace.schema import KernelMetrics

_HEADER = re.compile(rb'(?m)^\W{0,4}ID"?,"?Process ID"?,[^\n]*Kernel Name')
_ABOUT_THE_LAUNCH = re.compile(
    r"ID|Process ID|Process Name|Host Name|Kernel Name|Kernel Time|Context|Stream|Block Size|Grid Size|Device|CC"
    r"|Section Name|Invocations"
)
_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d*)?(?:[eE][+-]?\d{1,3})?")
_NUMBER_ELSEWHERE = re.compile(r"-?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d*)?")
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)")


@dataclass
class _Found:
    """The metrics so far."""

    names: Interned = field(default_factory=Interned)
    units: Interned = field(default_factory=Interned)
    rows: list[tuple[int, int, int, int, float]] = field(default_factory=list)
    capability: tuple[int, int] | None = None


def read(path: Path) -> list[Trace]:
    """One trace without a timeline, with `kernel_metrics`. Raises NotATrace where no metric is a number."""
    table, found = CsvRows(path), _Found()
    for header, row, units in _launches(table):
        kernel, launch = _cell(header, row, "Kernel Name") or "(unnamed)", int(ids_of([_cell(header, row, "ID")])[0])
        match = _CAPABILITY.fullmatch(_cell(header, row, "CC"))
        found.capability = found.capability or ((int(match[1]), int(match[2])) if match else None)
        for metric, unit, text in _metrics(header, row, units):
            value = _number(text)
            if value is not None and metric:
                numbers = (found.names[kernel], found.names[metric], found.units[unit])
                found.rows.append((launch, *numbers, value))
    if not found.rows:
        raise NotATrace(path, "is a table of Nsight Compute without any metric; profile with: ncu --page raw --csv")
    columns = zip(
        ("launch", "kernel", "metric", "unit", "value"), map(list, zip(*found.rows, strict=True)), strict=True
    )
    return [
        Trace(
            source=str(path),
            names=tuple(found.names),
            texts=tuple(found.units),
            rank=rank_in_name(path),
            kernel_metrics=KernelMetrics.build(dict(columns)),
            facts=Facts(device_capability=found.capability),
            warnings=(f"{path}: {table.damage}",) if table.damage else (),
        )
    ]


def _launches(table: CsvRows) -> Iterator[tuple[dict[str, int], list[str], list[str]]]:
    """Each row of a launch with the positions of its columns and the row of units, empty where there is none."""
    header: dict[str, int] = {}
    units: list[str] = []
    for batch in table:
        for row in batch:
            if row and row[0] == "ID":
                header, units = {}, []
                for i, name in enumerate(row):
                    header.setdefault(name, i)
            elif header and len(row) > max(header.values()):
                if "Metric Name" not in header and not units and not row[0].strip():
                    units = row
                else:
                    yield header, row, units


def _metrics(header: dict[str, int], row: Sequence[str], units: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Name, unit and value of each metric of a row."""
    if "Metric Name" in header:
        yield _cell(header, row, "Metric Name"), _cell(header, row, "Metric Unit"), _cell(header, row, "Metric Value")
        return
    for name, at in header.items():
        if not _ABOUT_THE_LAUNCH.fullmatch(name):
            yield name, units[at].strip() if at < len(units) else "", row[at].strip()


def _cell(header: dict[str, int], row: Sequence[str], name: str) -> str:
    return row[header[name]].strip() if name in header else ""


def _number(text: str) -> float | None:
    """`1,234.5` or, in some countries, `1.234,5`; None for anything else."""
    if len(text) > 60:
        return None
    if _NUMBER.fullmatch(text):
        return float(text.replace(",", ""))
    if _NUMBER_ELSEWHERE.fullmatch(text):
        return float(text.replace(".", "").replace(",", "."))
    return None


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    return b"\0" not in head[:4096] and _HEADER.search(head) is not None


READER = Reader("Nsight Compute", _sniffs, read)
