"""Turns the grown columns of one rank into a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from diagnose.model import Facts
from diagnose.trace import Thread, Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.kineto.meaning import range_kind
from diagnose.trace.readers.kineto.memory_events import memory_of
from diagnose.trace.readers.kineto.tables import RankTables
from diagnose.trace.readers.reader import rank_in_name, window_of
from diagnose.trace.schema import MISSING, DeviceWaits, DeviceWork, Frames, HostCalls, Ops, Ranges

_LATEST_BASE_NS = 4_000_000_000_000_000_000


@dataclass(frozen=True)
class Device:
    """One entry of `deviceProperties`; None is unknown."""

    ordinal: int
    name: str
    capability: tuple[int, int] | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Header:
    """The members of the document beside its events."""

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[Device, ...] = ()

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> Header:
        """Return the header from decoded JSON of any shape; unexpected values are unknown."""
        base = _int(members.get("baseTimeNanoseconds"))
        info = members.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        listed = members.get("deviceProperties")
        return cls(
            base_ns=base if base is not None and 0 <= base < _LATEST_BASE_NS else 0,
            rank=_not_negative(info.get("rank")),
            world_size=_not_negative(info.get("world_size")),
            devices=tuple(
                _device(i, entry)
                for i, entry in enumerate(listed if isinstance(listed, list) else [])
                if isinstance(entry, dict)
            ),
        )


def trace_of(path: Path, tables: RankTables, header: Header, rank: int | None) -> Trace:
    """The trace of one rank, which empties `tables`; `rank` is what a merged file says, None where it says nothing."""
    base_ns = _base_ns(tables, header.base_ns)
    names = tables.names
    kinds = np.asarray([range_kind(name) for name in names], np.uint8)
    device: DeviceWork = tables.device.build(base_ns)
    calls: HostCalls = tables.calls.build(base_ns)
    ops: Ops = tables.ops.build(base_ns)
    if not (ops.external_id == 0).any():  # Kineto's 0 is "caused by no operator", unless an operator bears it
        device.external_id[device.external_id == 0] = MISSING
        calls.external_id[calls.external_id == 0] = MISSING
    frames: Frames = tables.frames.build(base_ns)
    ranges: Ranges = tables.ranges.build(base_ns, kinds)
    device_ranges: Ranges = tables.device_ranges.build(base_ns, kinds)
    waits: DeviceWaits = tables.waits.build(base_ns)
    memory, counters = memory_of(tables.memory, base_ns, names)
    devices = _used_first(header.devices, device)
    return Trace(
        source=str(path),
        names=tuple(names),
        texts=tuple(_compact(text) for text in tables.texts.known()),
        threads=_threads(tables),
        collectives=tuple(tables.collectives),
        rank=rank if rank is not None else header.rank if header.rank is not None else rank_in_name(path),
        world_size=header.world_size,
        device_names=tuple(one.name for one in devices if one.name) if devices and devices[0].name else (),
        window_ns=window_of((device, calls, ops, frames, ranges, device_ranges)),
        device=device,
        calls=calls,
        ops=ops,
        frames=frames,
        ranges=ranges,
        device_ranges=device_ranges,
        waits=waits,
        counters=counters,
        memory=memory,
        facts=_facts(devices[0]) if devices and len(device) else Facts(),
        warnings=_warnings(path, tables, device),
    )


def _base_ns(tables: RankTables, base_ns: int) -> int:
    """Return the offset to add to times; 0 where they are since the epoch already, as in some re-saved files."""
    for rows in (tables.ops, tables.device, tables.calls, tables.ranges, tables.frames):
        if rows.rows:
            return base_ns if int(np.median(rows.column("start_ns"))) < base_ns // 2 else 0
    return base_ns


def _threads(tables: RankTables) -> tuple[Thread, ...]:
    named = {(str(pid), str(tid)): name for (pid, tid), name in tables.thread_names.items()}
    threads = []
    for pid, tid in tables.threads.threads:
        pid_number, tid_number = ids_of([pid, tid]).tolist()
        name = named.get((str(pid), str(tid))) or (tid if isinstance(tid, str) else "")
        threads.append(Thread(pid_number, tid_number, name))
    return tuple(threads)


def _compact(text: bytes) -> str:
    """JSON text without the white space that re-saving adds."""
    try:
        return msgspec.json.format(text, indent=-1).decode("utf-8", "replace")
    except msgspec.DecodeError:
        return text.decode("utf-8", "replace")


def _used_first(devices: Sequence[Device], work: DeviceWork) -> list[Device]:
    """The devices that the process saw, the one with the most work first."""
    ordinals, counts = np.unique(work.device, return_counts=True)
    rows = dict(zip(ordinals.tolist(), counts.tolist(), strict=True))
    return sorted(devices, key=lambda device: -rows.get(device.ordinal, 0))


def _facts(device: Device) -> Facts:
    return Facts(
        device_name=device.name or None,
        device_capability=device.capability,
        device_memory_bytes=device.memory_bytes,
    )


def _warnings(path: Path, tables: RankTables, device: DeviceWork) -> tuple[str, ...]:
    counted = [
        (tables.without_time, "events have no time that can be read and were left out"),
        (tables.without_duration, "events have no duration; they count as instants"),
        (tables.negative, "events have a negative duration; they count as instants"),
        (_repeated(device), "device events are there twice; time is not counted twice, but their number is"),
    ]
    counted += [
        (count, f"events of the unknown category {category or '(none)'!r} were left out")
        for category, count in tables.unknown.most_common(5)
    ]
    return tuple(f"{path}: {count} {what}" for count, what in counted if count)


def _repeated(device: DeviceWork) -> int:
    """Count the rows that equal the row before in all columns that tell device work apart."""
    same = np.ones(max(0, len(device) - 1), np.bool_)
    for column in (device.start_ns, device.end_ns, device.device, device.stream, device.name, device.correlation):
        same &= column[1:] == column[:-1]
    return int((same & (device.end_ns[1:] > device.start_ns[1:])).sum())


def _device(index: int, entry: Mapping[str, Any]) -> Device:
    ordinal, name = _int(entry.get("id")), entry.get("name")
    major, minor = _int(entry.get("computeMajor")), _int(entry.get("computeMinor"))
    return Device(
        ordinal=index if ordinal is None else ordinal,
        name=name.strip() if isinstance(name, str) else "",
        capability=(major, minor) if major is not None and minor is not None else None,
        memory_bytes=_not_negative(entry.get("totalGlobalMem")),
    )


def _int(value: object) -> int | None:
    number = int(ids_of([value])[0]) if isinstance(value, int | str) and not isinstance(value, bool) else MISSING
    return None if number == MISSING else number


def _not_negative(value: object) -> int | None:
    number = _int(value)
    return number if number is not None and number >= 0 else None
