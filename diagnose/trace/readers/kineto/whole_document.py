"""Reads a Kineto document, or a part of one, into the tables of each rank in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.trace.readers.kineto.chunks import CHUNK_BYTES, KinetoStream
from diagnose.trace.readers.kineto.document import Losses
from diagnose.trace.readers.kineto.events import Event, Instant, Metadata, X
from diagnose.trace.readers.kineto.tables import RankTables
from diagnose.trace.readers.kineto.timestamps import Inexact

Ranks = dict[int | None, RankTables]


@dataclass(frozen=True)
class Whole:
    """All that a document says."""

    ranks: Ranks
    """The recordings by rank, where ranks were merged into one file; else one, under None."""
    header: dict[str, Any]
    losses: Losses
    has_events: bool
    """Whether there was an array of events at all."""


def read_whole(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Whole:
    """A document, from its beginning to its end."""
    stream = KinetoStream(path, chunk_bytes=chunk_bytes)
    return Whole(read_stream(stream), stream.header, stream.losses, stream.has_events)


def read_stream(stream: KinetoStream) -> Ranks:
    """The tables of what a stream gives."""
    ranks: Ranks = {}
    with _no_collector():
        for events in stream:
            try:
                _take(events, ranks, stream.merged)
            except Inexact:
                _take(stream.exactly(), ranks, stream.merged)
    return ranks


def _take(events: list[Event], ranks: Ranks, merged: bool) -> None:
    for rank, group in _by_rank(events).items() if merged else ((None, events),):
        tables = ranks.get(rank) or ranks.setdefault(rank, RankTables())
        tables.add(group)


def _by_rank(events: list[Event]) -> dict[int | None, list[Event]]:
    """Events of a merged file by the rank in their arguments, with the process ids they had before."""
    groups: dict[int | None, list[Event]] = {}
    for event in events:
        if isinstance(event, X | Metadata | Instant) and event.args is not None:
            if event.args.pid_raw is not None:
                event.pid = event.args.pid_raw
            groups.setdefault(event.args.rank if isinstance(event.args.rank, int) else None, []).append(event)
    return groups


@contextmanager
def _no_collector() -> Iterator[None]:
    """The cyclic collector finds nothing among millions of small structs, and looks at them over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
