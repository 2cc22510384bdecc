"""Reads PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`): what the allocator did, and held at the end.

    {"segments": [{"address": …, "total_size": …, "blocks": […]}, …],
     "device_traces": [[{"action": "alloc", "addr": …, "size": …, "stream": …, "time_us": …, "frames": […]}, …], …]}

Histories of 2023 have no times: their order is kept, and `time_ns` is missing. Frames of C++ are left out. A live run
adds what it knew at that moment under a key of its own (`diagnose.collect.records`): which addresses are parameters,
gradients and optimizer state, and the allocation that found no room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.errors import InputError, NotATrace
from diagnose.model import Facts
from diagnose.trace import StackFrame, Trace
from diagnose.trace.readers.columns import ids_of
from diagnose.trace.readers.io.blocks import read_whole
from diagnose.trace.readers.io.limits import at_most
from diagnose.trace.readers.io.plain_pickle import NotPlain, plain_data
from diagnose.trace.readers.kineto.meaning import range_kind
from diagnose.trace.readers.memory.snapshot_blocks import blocks_of, dicts, whole
from diagnose.trace.readers.reader import Reader, rank_in_name
from diagnose.trace.readers.telemetry.rank_records import Ownership
from diagnose.trace.schema import MISSING, Blocks, Int32, Int64, MemoryAction, MemoryEvents, Ranges, Segments
from diagnose.units import NS_PER_US

_MOST_BYTES = 512 << 20
"""A snapshot is held whole, in three to five times its size; this much is a history of some ten million events."""
_REMEDY = "record fewer events (max_entries), or read it with `diagnose analyze --any-size`"

_MARKS = (b"device_traces", b"segments")
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_NOT_PYTHON = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inl|inc|S)$")
_LATEST_US = (1 << 63) // NS_PER_US - 1
_ACTIONS = {
    "alloc": MemoryAction.ALLOC,
    "free_requested": MemoryAction.FREE_REQUESTED,
    "free_completed": MemoryAction.FREE,
    "free": MemoryAction.FREE,
    "segment_alloc": MemoryAction.SEGMENT_ALLOC,
    "segment_free": MemoryAction.SEGMENT_FREE,
    "segment_map": MemoryAction.SEGMENT_MAP,
    "segment_unmap": MemoryAction.SEGMENT_UNMAP,
    "oom": MemoryAction.OUT_OF_MEMORY,
}
_OURS = "diagnose"


def read(path: Path) -> list[Trace]:
    """The one trace of a snapshot. Raises InputError where the pickle is damaged or holds more than plain data."""
    try:
        snapshot = plain_data(read_whole(path, at_most(_MOST_BYTES), _REMEDY))
    except NotPlain as error:
        raise InputError(path, str(error)) from error
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise NotATrace(path, "is a pickle of plain data, but not PyTorch's memory snapshot (it has no device_traces)")
    stacks = _Stacks()
    live = snapshot.get(_OURS)
    live = live if isinstance(live, dict) else {}
    events, left_out = _events(snapshot["device_traces"], stacks)
    events = _with_lack(events, live)
    ranges, names = _annotations(snapshot.get("external_annotations"))
    timed = events.time_ns[events.time_ns != MISSING]
    warnings = [f"{path}: {left_out} entries of the history are no events and were left out"] if left_out else []
    if len(events) and not len(timed):
        warnings.append(f"{path}: the history has no times (PyTorch wrote none in 2023); only its order is known")
    segments = snapshot.get("segments")
    blocks = blocks_of(segments, stacks.number, live)
    trace = Trace(
        source=str(path),
        names=names,
        stacks=tuple(stacks.stacks),
        rank=rank_in_name(path),
        window_ns=(int(timed.min()), int(timed.max())) if len(timed) else None,
        ranges=ranges,
        memory=events,
        segments=_segments(segments),
        blocks=blocks,
        facts=Facts(device_memory_bytes=_size_or_none(live.get("capacity_bytes"))),
        warnings=tuple(warnings),
    )
    if not len(trace.memory) and not len(trace.segments):
        raise NotATrace(path, "is a memory snapshot without history and without segments; was memory ever allocated?")
    return [trace]


def with_snapshot(trace: Trace, snapshot: Trace) -> Trace:
    """A trace with what a memory snapshot of its rank tells of the allocator."""
    memory, blocks, facts = snapshot.memory, snapshot.blocks, trace.facts
    first = len(trace.stacks)
    return replace(
        trace,
        stacks=trace.stacks + snapshot.stacks,
        # A snapshot's history knows who asked, and the same events from the profiler do not: one of them is enough.
        memory=replace(memory, stack=_after(memory.stack, first)) if len(memory) else trace.memory,
        segments=Segments.concatenate((trace.segments, snapshot.segments)),
        blocks=Blocks.concatenate((trace.blocks, replace(blocks, stack=_after(blocks.stack, first)))),
        facts=replace(facts, device_memory_bytes=facts.device_memory_bytes or snapshot.facts.device_memory_bytes),
    )


def _after(stack: Int32, first: int) -> Int32:
    return np.where(stack == MISSING, MISSING, stack + first).astype(np.int32)


class _Stacks:
    """Stacks by identity: a snapshot shares the objects of its frames, thousands of times each."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[StackFrame, ...], int] = {}
        self._by_list: dict[int, int] = {}
        self._frames: dict[int, StackFrame | None] = {}
        self._interned: dict[StackFrame, StackFrame] = {}
        self._owned = Ownership()

    def number(self, frames: object) -> int:
        """The index of a stack in `stacks`; -1 where it names no Python frame."""
        if not isinstance(frames, list):
            return MISSING
        known = self._by_list.get(id(frames))
        if known is None:
            stack = tuple(frame for frame in map(self._frame, frames) if frame is not None)
            known = self.stacks.setdefault(stack, len(self.stacks)) if stack else MISSING
            self._by_list[id(frames)] = known
        return known

    def _frame(self, value: object) -> StackFrame | None:
        key = id(value)
        if key not in self._frames:
            frame = _frame_of(value, self._owned)
            self._frames[key] = self._interned.setdefault(frame, frame) if frame is not None else None
        return self._frames[key]


def _frame_of(value: object, owned: Ownership) -> StackFrame | None:
    if not isinstance(value, dict):
        return None
    file, line, function = value.get("filename"), value.get("line"), value.get("name")
    if not isinstance(file, str) or not isinstance(line, int) or isinstance(line, bool) or line <= 0:
        return None
    if _NOT_PYTHON.search(file):
        return None
    return StackFrame(file, line, function if isinstance(function, str) else "", owned(file))


def _events(device_traces: Sequence[object], stacks: _Stacks) -> tuple[MemoryEvents, int]:
    """All devices' histories by time, and how many entries were none. A list that is there twice is read once."""
    entries: list[dict[str, Any]] = []
    devices: list[int] = []
    seen: set[int] = set()
    left_out = 0
    for device, history in enumerate(device_traces):
        if id(history) in seen:
            continue
        seen.add(id(history))
        listed = history if isinstance(history, list) else [None]
        real = [entry for entry in listed if isinstance(entry, dict) and isinstance(entry.get("action"), str)]
        left_out += len(listed) - len(real)
        real = [entry for entry in real if entry["action"] != "snapshot"]  # says only that a snapshot was taken
        entries += real
        devices += [device] * len(real)
    time_us = ids_of([whole(entry.get("time_us")) for entry in entries])
    events = MemoryEvents.build(
        {
            "time_ns": np.where((time_us >= 0) & (time_us <= _LATEST_US), time_us * NS_PER_US, MISSING),
            "action": [_ACTIONS.get(entry["action"], MemoryAction.UNKNOWN) for entry in entries],
            "address": ids_of([whole(entry.get("addr")) for entry in entries]),
            "size_bytes": ids_of([whole(entry.get("size")) for entry in entries]),
            "device": devices,
            "stream": ids_of([whole(entry.get("stream")) for entry in entries]),
            "stack": [stacks.number(entry.get("frames")) for entry in entries],
        }
    )
    return (events.sorted_by_start() if (events.time_ns != MISSING).all() else events), left_out


def _with_lack(events: MemoryEvents, live: dict[Any, Any]) -> MemoryEvents:
    """The events, and as the last one the allocation that found no room where the history does not have it."""
    if live.get("reason") != "out of memory" or (events.action == MemoryAction.OUT_OF_MEMORY).any():
        return events
    lack = MemoryEvents.build(
        {
            "time_ns": [_size_or_none(live.get("time_ns")) or MISSING],
            "action": [MemoryAction.OUT_OF_MEMORY],
            "size_bytes": ids_of([whole(live.get("wanted_bytes"))]),
            "device": ids_of([whole(live.get("device"))]),
        }
    )
    return MemoryEvents(
        **{spec.name: np.append(getattr(events, spec.name), getattr(lack, spec.name)) for spec in events.columns()}
    )


def _size_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62 else None


def _segments(listed: object) -> Segments:
    segments = dicts(listed)

    def column(key: str) -> Int64:
        return ids_of([whole(one.get(key)) for one in segments])

    return Segments.build(
        {
            "address": column("address"),
            "size_bytes": column("total_size"),
            "allocated_bytes": column("allocated_size"),
            "active_bytes": column("active_size"),
            "device": np.clip(column("device"), MISSING, (1 << 31) - 1),
            "stream": column("stream"),
            "expandable": [one.get("is_expandable") is True for one in segments],
        }
    )


def _annotations(listed: object) -> tuple[Ranges, tuple[str, ...]]:
    """The stretches that `record_function` marked while the history was recorded."""
    names: dict[str, int] = {}
    rows = list(_annotated(listed if isinstance(listed, list) else []))
    return (
        Ranges.build(
            {
                "start_ns": [start for _, start, _ in rows],
                "end_ns": [end for _, _, end in rows],
                "kind": [range_kind(name) for name, _, _ in rows],
                "name": [names.setdefault(name, len(names)) for name, _, _ in rows],
            }
        ).sorted_by_start(),
        tuple(names),
    )


def _annotated(listed: Sequence[object]) -> Iterator[tuple[str, int, int]]:
    open_at: dict[str, list[int]] = {}
    for mark in listed:
        if not isinstance(mark, dict):
            continue
        name, time_us = mark.get("name"), whole(mark.get("time_us"))
        if not isinstance(name, str) or not 0 <= time_us <= _LATEST_US:
            continue
        begun = open_at.setdefault(name, [])
        if mark.get("stage") == "START":
            begun.append(time_us)
        elif mark.get("stage") == "END" and begun and begun[-1] <= time_us:
            yield name, begun.pop() * NS_PER_US, time_us * NS_PER_US


def _sniffs(head: bytes, path: Path) -> bool:  # noqa: ARG001 - the name decides nothing
    return head.startswith(_PICKLES) and any(mark in head for mark in _MARKS)


READER = Reader("memory snapshot", _sniffs, read)
