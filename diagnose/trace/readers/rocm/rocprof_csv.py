"""Reads the CSVs of rocprof (1), rocprofv2 and rocprofv3: kernels, copies, calls of HIP and HSA, ROCTX, RCCL.

    out/myhost/908_kernel_trace.csv  out/myhost/908_hip_api_trace.csv  out/myhost/908_memory_copy_trace.csv
    results.csv                       (rocprof 1: kernels alone; rocprofv2: results_results.csv)

rocprofv3 writes one file for each kind of event. Those of one process share the beginning of their names and are read
as one recording. Where no agent_info.csv lies beside them, a device's ordinal is the number of its agent, which counts
processors too. Bytes of copies are in none of these files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from diagnose.errors import InputError, NotATrace
from diagnose.trace import Trace
from diagnose.trace.readers.io.blocks import read_head
from diagnose.trace.readers.io.csv_rows import CsvRows, first_row
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.meaning import direction_of
from diagnose.trace.readers.rocm.recording import Agent, Recording, as_ranks
from diagnose.trace.readers.rocm.rocprof_columns import BEGIN, END, Header, Kind, header_of, headerless
from diagnose.trace.schema import MISSING, CopyDirection

_PART = re.compile(
    r"_?(?:kernel|hip(?:_\w+?)?|hsa(?:_\w+?)?|marker(?:_\w+?)?|rccl(?:_\w+?)?|roc\w+?|memory_copy|memory_allocation"
    r"|scratch_memory|agent)_(?:trace|info|stats)(?:\.csv)?(?:\.gz)?$"
)
_AGENT = re.compile(r"(?:agent\s*-?\s*)?(\d{1,9})", re.IGNORECASE)


@dataclass
class _Table:
    """One CSV and what its columns mean."""

    path: Path
    header: Header
    has_header: bool
    broken: int = 0
    """Rows with too few fields."""

    def rows(self) -> Iterable[list[list[str]]]:
        """Batches of whole rows."""
        needed = max(self.header.columns.values()) + 1
        for number, batch in enumerate(CsvRows(self.path)):
            start = 1 if number == 0 and self.has_header else 0
            whole = [row for row in batch[start:] if len(row) >= needed]
            self.broken += sum(1 for row in batch[start:] if row and len(row) < needed)
            if whole:
                yield whole


@dataclass
class _Run:
    """The tables of one process, or of several where the tables say which."""

    recording: Recording
    tables: list[_Table]
    pid_in_name: int = MISSING
    pid_of_guid: dict[str, int] = field(default_factory=dict)
    agents: dict[int, Agent] = field(default_factory=dict)


def read(path: Path) -> list[Trace]:
    """The trace of one CSV alone."""
    return read_together([path])


def read_together(paths: Sequence[Path]) -> list[Trace]:
    """The traces of several CSVs: those of one run make one recording, several runs are the ranks of a job."""
    runs: list[tuple[int, Trace]] = []
    refused: list[InputError] = []
    for _, group in groupby(sorted(paths, key=_run_of), key=_run_of):
        try:
            runs += _read_run(list(group))
        except InputError as error:
            refused.append(error)
    if not runs:
        raise refused[0]
    traces = as_ranks(runs)
    if not refused:
        return traces
    left_out = f"{len(refused)} other CSVs of rocprof are no timelines and were left out, the first being {refused[0]}"
    return [replace(traces[0], warnings=(*traces[0].warnings, left_out)), *traces[1:]]


def _run_of(path: Path) -> tuple[str, str]:
    """The folder and the beginning of the name, which the files of one run share."""
    match = _PART.search(path.name)
    return str(path.parent), path.name[: match.start()] if match else path.name


def _read_run(paths: Sequence[Path]) -> list[tuple[int, Trace]]:
    tables = [_table(path) for path in paths]
    timed = [table for table in tables if table.header.kind not in (Kind.OTHER, Kind.AGENTS)]
    if not timed:
        raise NotATrace(tables[0].path, tables[0].header.sentence)
    prefix = _run_of(timed[0].path)[1]
    pid = int(prefix) if prefix.isdecimal() and len(prefix) < 10 else MISSING
    where = timed[0].path if len(timed) == 1 else timed[0].path.parent / f"{prefix}*.csv"
    run = _Run(Recording(where), tables, pid)
    order = (Kind.AGENTS, Kind.CALLS, Kind.KERNELS, Kind.COPIES)
    for kind in order:
        for table in tables:
            if table.header.kind is kind:
                _READ[kind](run, table)
    for table in timed:
        if table.broken:
            run.recording.warnings.append(f"{table.broken} rows of {table.path.name} are cut off and were left out")
        if table.header.counters:
            run.recording.warnings.append(
                f"hardware counters were recorded too ({', '.join(table.header.counters[:3])}, …): the profiler ran "
                "the kernels one by one for that, so what lies between them says nothing"
            )
    return run.recording.of_processes("has no row that could be read; nothing ran on the device while it was recorded")


def _table(path: Path) -> _Table:
    row = first_row(read_head(path))
    header = header_of(row)
    if header is not None:
        return _Table(path, header, True)
    header = headerless(row)
    if header is None:
        raise InputError(path, "is a table of unknown columns")
    return _Table(path, header, False)


def _column(rows: Sequence[Sequence[str]], place: int | None) -> list[str | None]:
    return [None] * len(rows) if place is None else [row[place] for row in rows]


def _numbers(rows: Sequence[Sequence[str]], place: int | None) -> Sequence[int | str | None]:
    """A column as numbers, which is a third of the time to read; as text where one of them is none."""
    column = _column(rows, place)
    try:
        return [None if place is None else int(text or "") for text in column]
    except ValueError:
        return column


def _by_process(run: _Run, table: _Table, rows: list[list[str]]) -> Iterable[tuple[Hashable, list[list[str]]]]:
    """Rows by the process that they are of."""
    guid, pid = table.header.place("guid"), table.header.place("processid", "pid")
    if pid is None and guid is None:
        known = list(run.recording.processes)
        return [(known[0] if len(known) == 1 else run.pid_in_name, rows)]
    groups: dict[Hashable, list[list[str]]] = {}
    for row in rows:
        number = _number(row[pid]) if pid is not None else MISSING
        if guid is not None:
            if number >= 0:
                run.pid_of_guid.setdefault(row[guid], number)
            number = run.pid_of_guid.get(row[guid], MISSING)
        groups.setdefault(number if number >= 0 or guid is None else row[guid], []).append(row)
    return groups.items()


def _read_agents(run: _Run, table: _Table) -> None:
    place = table.header.place
    node, kind, name = place("nodeid"), place("agenttype"), place("productname", "name")
    ordinal = 0
    for rows in table.rows():
        for row in rows:
            if node is not None and (kind is None or row[kind].strip().upper() == "GPU"):
                run.agents[_number(row[node])] = Agent(ordinal, row[name].strip() if name is not None else "")
                ordinal += 1


def _read_calls(run: _Run, table: _Table) -> None:
    place = table.header.place
    domain = place("domain")
    for rows in table.rows():
        for key, mine in _by_process(run, table, rows):
            by_domain: dict[str, list[list[str]]] = {}
            for row in mine:
                by_domain.setdefault(row[domain] if domain is not None else "", []).append(row)
            for category, part in by_domain.items():
                run.recording.process(key).add_host(
                    category,
                    _numbers(part, place(*BEGIN)),
                    _numbers(part, place(*END)),
                    _column(part, place("function")),
                    _numbers(part, place("threadid", "tid")),
                    _numbers(part, place("correlationid")),
                )


def _read_kernels(run: _Run, table: _Table) -> None:
    place = table.header.place
    stream, queue = place("streamid"), place("queueid")
    for rows in table.rows():
        for key, mine in _by_process(run, table, rows):
            run.recording.process(key).add_kernels(
                _numbers(mine, place(*BEGIN)),
                _numbers(mine, place(*END)),
                _column(mine, place("kernelname")),
                _devices(run, _column(mine, place("agentid", "gpuid"))),
                _numbers(mine, stream),
                _numbers(mine, queue),
                _numbers(mine, place("correlationid")),
            )


def _read_copies(run: _Run, table: _Table) -> None:
    place = table.header.place
    for rows in table.rows():
        for key, mine in _by_process(run, table, rows):
            names = _column(mine, place("direction"))
            source = _column(mine, place("sourceagentid"))
            target = _column(mine, place("destinationagentid"))
            away = [direction_of(name or "") is CopyDirection.DEVICE_TO_HOST for name in names]
            agents = [one if out else other for out, one, other in zip(away, source, target, strict=True)]
            run.recording.process(key).add_copies(
                _numbers(mine, place(*BEGIN)),
                _numbers(mine, place(*END)),
                names,
                _devices(run, agents),
                _numbers(mine, place("streamid")),
                _numbers(mine, place("correlationid")),
                [None] * len(mine),
            )


def _devices(run: _Run, agents: Iterable[str | None]) -> list[int]:
    """Ordinals of `Agent 4` or `4`."""
    numbers = [_number(agent) for agent in agents]
    for number in set(numbers):
        if number >= 0 and number not in run.recording.agents:
            run.recording.agents[number] = run.agents.get(number, Agent(number))
    return run.recording.ordinals(numbers)


@lru_cache(maxsize=1 << 16)
def _number(text: str | None) -> int:
    match = _AGENT.fullmatch((text or "").strip())
    return int(match[1]) if match else MISSING


_READ: dict[Kind, Callable[[_Run, _Table], None]] = {
    Kind.AGENTS: _read_agents,
    Kind.CALLS: _read_calls,
    Kind.KERNELS: _read_kernels,
    Kind.COPIES: _read_copies,
}


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    if b"," not in head[:1024] or head.lstrip()[:1] in (b"{", b"["):
        return False
    row = first_row(head)
    return header_of(row) is not None or headerless(row) is not None


READER = Reader("rocprof CSV", _sniffs, read, read_together)
