"""The allocator's events in a Kineto document (`profile_memory=True`): what was taken and given back, and the totals.

    {"ph": "i", "name": "[memory]", "args": {"Device Type": 1, "Device Id": 0, "Addr": …, "Bytes": -512,
     "Total Allocated": 6551981568, "Total Reserved": 12782141440}}

A free has a negative number of bytes. The totals of devices become counters under the names that a live run uses; those
of the host count what was taken since the profiler began, and memory that was taken before may be given back. Profilers
of 2021 wrote neither addresses nor totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diagnose.trace.readers.columns import Growing, ids_of
from diagnose.trace.readers.kineto.events import MemoryArgs
from diagnose.trace.schema import MISSING, Counters, Int64, MemoryAction, MemoryEvents, Table, UInt8, column

ALLOCATED = "allocator.allocated_bytes"
RESERVED = "allocator.reserved_bytes"

_ACTIONS: Mapping[str, MemoryAction] = {
    "[memory]": MemoryAction.ALLOC,
    "[OutOfMemory]": MemoryAction.OUT_OF_MEMORY,
}
_HOST_TYPE = 0
_MOST_ORDINAL = 1 << 16


@dataclass(frozen=True, eq=False)
class MemoryInstants(Table):
    """The events as they are read, before they are told apart into `MemoryEvents` and `Counters`."""

    start_ns: Int64 = column(np.int64, "ns", "when")
    action: UInt8 = column(np.uint8, "MemoryAction", "`ALLOC` stands for frees, too", missing=0)
    address: Int64 = column(np.int64, "address", "where the piece begins")
    change_bytes: Int64 = column(np.int64, "bytes", "of the piece, negative for a free", missing=0)
    allocated_bytes: Int64 = column(np.int64, "bytes", "in use by tensors from now on")
    reserved_bytes: Int64 = column(np.int64, "bytes", "held of the device from now on")
    device: Int64 = column(np.int64, "ordinal", "the device; -1 for the host")


def of_memory(events: Iterable[Any]) -> list[Any]:
    """Keep the instant events in which the allocator changed something."""
    return [event for event in events if event.name in _ACTIONS and type(event.args) is MemoryArgs and event.args.bytes]


def add_memory(table: Growing, events: list[Any], times: Int64) -> None:
    """Take in such events."""
    args = [event.args for event in events]
    device = ids_of([one.device for one in args])
    on_host = (ids_of([one.device_type for one in args]) == _HOST_TYPE) | (device < 0) | (device >= _MOST_ORDINAL)
    table.append(
        len(events),
        start_ns=times,
        action=np.asarray([_ACTIONS[event.name] for event in events], np.uint8),
        address=ids_of([one.address for one in args]),
        change_bytes=ids_of([one.bytes for one in args]),
        allocated_bytes=ids_of([one.allocated for one in args]),
        reserved_bytes=ids_of([one.reserved for one in args]),
        device=np.where(on_host, MISSING, device),
    )


def memory_of(table: Growing, base_ns: int, names: dict[str, int]) -> tuple[MemoryEvents, Counters]:
    """Events and counters; names of counters are added to `names`. Empties `table`."""
    if not table.rows:
        return MemoryEvents.build(), Counters.build()
    rows = MemoryInstants.build(table.take_sorted())
    time_ns = rows.start_ns + base_ns
    given_back = (rows.action == MemoryAction.ALLOC) & (rows.change_bytes < 0)
    events = MemoryEvents.build(
        {
            "time_ns": time_ns,
            "action": np.where(given_back, MemoryAction.FREE, rows.action),
            "address": rows.address,
            "size_bytes": np.abs(rows.change_bytes),
            "device": rows.device,
        }
    )
    series = [
        _counter(names, ALLOCATED, time_ns, rows.device, rows.allocated_bytes),
        _counter(names, RESERVED, time_ns, rows.device, np.where(rows.device < 0, MISSING, rows.reserved_bytes)),
    ]
    return events, Counters.concatenate([one for one in series if len(one)])


def _counter(names: dict[str, int], name: str, time_ns: Int64, device: Int64, value: Int64) -> Counters:
    """The known values of a counter, without those that repeat the value before."""
    known = value >= 0
    if not known.any():
        return Counters.build()
    time_ns, device, value = time_ns[known], device[known], value[known]
    keep = _changes(device, value)
    number = np.full(int(keep.sum()), names.setdefault(name, len(names)), np.int32)
    return Counters.build(
        {"time_ns": time_ns[keep], "name": number, "device": device[keep], "value": value[keep].astype(np.float64)}
    )


def _changes(device: Int64, value: Int64) -> npt.NDArray[np.bool_]:
    """Mark the rows that change a device's value, and its last row, for the time that it covers."""
    order = np.argsort(device, kind="stable")
    device, value = device[order], value[order]
    other = device[1:] != device[:-1]
    changes = np.ones(len(order), np.bool_)
    changes[1:-1] = (other | (value[1:] != value[:-1]))[:-1] | other[1:]
    result = np.empty(len(order), np.bool_)
    result[order] = changes
    return result
