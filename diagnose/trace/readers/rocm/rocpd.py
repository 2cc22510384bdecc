"""Reads results.db of rocprofv3 (rocpd, schema 3): SQLite whose tables end in the process's guid.

    rocpd_kernel_dispatch_<guid>  rocpd_memory_copy_<guid>  rocpd_region_<guid>  rocpd_sample_<guid>   what happened
    rocpd_event_<guid>       its category and `stack_id`, the id that joins device work with the call that launched it
    rocpd_string_<guid>  rocpd_info_kernel_symbol_<guid>  rocpd_info_agent_<guid>  rocpd_info_thread_<guid>

The views over them are left alone. `rocpd_info_process` holds the whole environment and the command line of the
program: nothing but the process id is read of it. Grids count work-items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from diagnose.trace import Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.io.sqlite_file import MAGIC, Columns, Database, open_database, quote_name, table_names
from diagnose.trace.readers.io.truncated_json import UNDECODABLE
from diagnose.trace.readers.reader import Reader
from diagnose.trace.readers.rocm.meaning import Domain, domain_of
from diagnose.trace.readers.rocm.recording import Agent, Recording
from diagnose.trace.readers.rocm.rocprof_db import each_process
from diagnose.trace.readers.rocm.rows import Process
from diagnose.trace.schema import MISSING

_NAMED = re.compile(r"rocpd_(?:info_)?[a-z]+(?:_[a-z]+)*?(?=_?[0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12}$|$)")
_PARTS = ("kernel_dispatch", "memory_copy", "region", "sample")


@dataclass
class _Part:
    """The tables of one guid, and what its ids stand for."""

    database: Database
    tables: dict[str, str]
    """The full name of each table, by the name without the guid."""
    strings: dict[Any, Any] = field(default_factory=dict)
    pids: dict[Any, Any] = field(default_factory=dict)
    tids: dict[Any, Any] = field(default_factory=dict)
    agents: dict[Any, Agent] = field(default_factory=dict)

    def rows(self, table: str, columns: str, joins: str = "") -> Iterator[Columns]:
        """Columns of a table (`t.start`) and of tables joined to it, a batch at a time."""
        if table in self.tables:
            yield from self.database.query(f"SELECT {columns} FROM {quote_name(self.tables[table])} AS t {joins}")

    def mapping(self, table: str, key: str, value: str) -> dict[Any, Any]:
        return self.database.mapping(self.tables.get(table, ""), key, value)

    def has(self, table: str, *columns: str) -> bool:
        return self.database.has(self.tables.get(table, ""), *columns)

    def column(self, table: str, alias: str, name: str) -> str:
        """The column as SQL, NULL where the table lacks it."""
        return f"{alias}.{quote_name(name)}" if self.has(table, name) else "NULL"

    def event(self) -> str:
        """The join with the events, for `stack_id` and `category_id`."""
        if not self.has("rocpd_event", "id"):
            return "LEFT JOIN (SELECT NULL AS id, NULL AS stack_id, NULL AS category_id, NULL AS extdata) AS e ON 0"
        return f"LEFT JOIN {quote_name(self.tables['rocpd_event'])} AS e ON e.id = t.event_id"


def read(path: Path) -> list[Trace]:
    """One trace for each process in the database."""
    recording = Recording(path)
    with open_database(path) as database:
        for guid, tables in _by_guid(database).items():
            part = _Part(database, tables)
            part.strings = part.mapping("rocpd_string", "id", "string")
            part.pids = part.mapping("rocpd_info_process", "id", "pid")
            part.tids = part.mapping("rocpd_info_thread", "id", "tid")
            _read_agents(recording, part, guid)
            _read_kernels(recording, part)
            _read_copies(recording, part)
            _read_regions(recording, part)
    return recording.traces("is a database of rocprofv3 in which no kernel, copy or call was recorded")


def _by_guid(database: Database) -> dict[str, dict[str, str]]:
    """The tables of each process that was recorded into the file."""
    found: dict[str, dict[str, str]] = {}
    for name in database.tables:
        match = _NAMED.match(name)
        if match:
            found.setdefault(name[match.end() :].strip("_"), {})[match[0]] = name
    return {guid: tables for guid, tables in found.items() if any(f"rocpd_{part}" in tables for part in _PARTS)}


def _read_agents(recording: Recording, part: _Part, guid: str) -> None:
    columns = ", ".join(part.column("rocpd_info_agent", "t", name) for name in _AGENT_COLUMNS)
    for ids, types, orders, products, names in part.rows("rocpd_info_agent", columns):
        for key, kind, order, product, name in zip(ids, types, orders, products, names, strict=True):
            if kind is None or kind == "GPU":
                ordinal = int(ids_of([order])[0])
                agent = Agent(len(part.agents) if ordinal < 0 else ordinal, str(product or name or ""))
                part.agents[key] = recording.agents[guid, key] = agent


_AGENT_COLUMNS = ("id", "type", "type_index", "product_name", "name")


def _read_kernels(recording: Recording, part: _Part) -> None:
    symbols = part.mapping("rocpd_info_kernel_symbol", "id", "kernel_name")
    shown = part.mapping("rocpd_info_kernel_symbol", "id", "display_name")
    symbols |= {key: name for key, name in shown.items() if name}

    def add(process: Process, rows: Columns) -> None:
        _, begin, end, kernel, agent, stream, queue, call = rows
        names = [symbols.get(number) or "unknown kernel" for number in kernel]
        process.add_kernels(begin, end, names, _ordinals(part, agent), stream, queue, call)

    columns = _columns(part, "rocpd_kernel_dispatch", "pid start end kernel_id agent_id stream_id queue_id")
    _each_process(recording, part, part.rows("rocpd_kernel_dispatch", f"{columns}, e.stack_id", part.event()), add)


def _read_copies(recording: Recording, part: _Part) -> None:
    def add(process: Process, rows: Columns) -> None:
        _, begin, end, name_id, target, source, stream, size, call = rows
        names = [_text(part.strings.get(number)) for number in name_id]
        agents = [a if a in part.agents else b for a, b in zip(target, source, strict=True)]
        process.add_copies(begin, end, names, _ordinals(part, agents), stream, call, size)

    columns = _columns(part, "rocpd_memory_copy", "pid start end name_id dst_agent_id src_agent_id stream_id size")
    _each_process(recording, part, part.rows("rocpd_memory_copy", f"{columns}, e.stack_id", part.event()), add)


def _read_regions(recording: Recording, part: _Part) -> None:
    arguments = _rccl_arguments(part)

    def add(process: Process, rows: Columns) -> None:
        _, begin, end, tid, name_id, event, call, category, extra = rows
        by_category: dict[Any, list[int]] = {}
        for row, number in enumerate(category):
            by_category.setdefault(number, []).append(row)
        for number, mine in by_category.items():
            domain = _text(part.strings.get(number))
            names = [_text(part.strings.get(name_id[row])) for row in mine]
            if domain_of(domain) is Domain.MARKER:
                names = [_message(extra[row]) or name for row, name in zip(mine, names, strict=True)]
            process.add_host(
                domain,
                [begin[row] for row in mine],
                [end[row] for row in mine],
                names,
                [part.tids.get(tid[row], tid[row]) for row in mine],
                [call[row] for row in mine],
                [arguments.get(event[row]) for row in mine],
            )

    event = "e.stack_id, e.category_id, e.extdata"
    columns = _columns(part, "rocpd_region", "pid start end tid name_id event_id")
    _each_process(recording, part, part.rows("rocpd_region", f"{columns}, {event}", part.event()), add)
    if part.has("rocpd_track", "id", "pid", "tid", "name_id"):
        # What took no time (marks) is a sample on a track, whose name is the category.
        track = f"LEFT JOIN {quote_name(part.tables['rocpd_track'])} AS k ON k.id = t.track_id"
        columns = "k.pid, t.timestamp, t.timestamp, k.tid, k.name_id, t.event_id"
        _each_process(recording, part, part.rows("rocpd_sample", f"{columns}, {event}", f"{track} {part.event()}"), add)


def _rccl_arguments(part: _Part) -> dict[Any, dict[str, str]]:
    """The arguments of RCCL's calls that say how much is communicated, by event."""
    categories = [key for key, name in part.strings.items() if domain_of(_text(name)) is Domain.RCCL]
    numbers = [key for key in categories if isinstance(key, int)]
    if not numbers or not part.has("rocpd_arg", "event_id", "name", "value") or not part.has("rocpd_event", "id"):
        return {}
    chosen = ", ".join(map(str, numbers))
    found: dict[Any, dict[str, str]] = {}
    joins = f"{part.event()} WHERE e.category_id IN ({chosen})"
    for events, names, values in part.rows("rocpd_arg", "t.event_id, t.name, t.value", joins):
        for event, name, value in zip(events, names, values, strict=True):
            if name in ("count", "datatype"):
                found.setdefault(event, {})[name] = _text(value)
    return found


def _columns(part: _Part, table: str, names: str) -> str:
    return ", ".join(part.column(table, "t", name) for name in names.split())


def _each_process(recording: Recording, part: _Part, batches: Iterator[Columns], add: Any) -> None:
    translated = (
        (tuple(part.pids.get(pid, pid) for pid in batch[0]), *batch[1:])  # the column holds the row of the process
        for batch in batches
    )
    each_process(recording, translated, add)


def _ordinals(part: _Part, agents: Any) -> list[int]:
    unknown = Agent(MISSING)
    return [part.agents.get(key, unknown).ordinal for key in agents]


def _message(extra: object) -> str | None:
    """The text of an annotation, which is kept as JSON."""
    if not isinstance(extra, str) or extra == "{}":
        return None
    try:
        message = msgspec.json.decode(extra, type=_Extra).message
    except UNDECODABLE:
        return None
    return message


class _Extra(msgspec.Struct):
    message: str | None = None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _sniffs(head: bytes, path: Path) -> bool:
    if not head.startswith(MAGIC):
        return False
    names = table_names(path)
    return any(name.startswith(("rocpd_info_agent", "rocpd_kernel_dispatch")) for name in names)


READER = Reader("rocpd", _sniffs, read)
