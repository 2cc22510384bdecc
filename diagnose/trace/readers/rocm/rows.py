"""The rows of one process from any of AMD's profilers, which grow batch by batch.

Readers give columns as their file has them (numbers, text, None); what is no time is counted and left out. Kernels are
joined with the call that launched them by the profiler's correlation id. Kernel names have lost `.kd`. A grid counts
work-items in all of AMD's formats, blocks nowhere; the schema has no column for either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diagnose.trace.readers.columns import Growing, Interned, ids_of
from diagnose.trace.readers.rocm.meaning import Domain, copy_kind, direction_of, domain_of, kernel_name, rccl_kind
from diagnose.trace.readers.rocm.rccl import RcclCall
from diagnose.trace.schema import MISSING, DeviceWork, HostCalls, Int32, Int64, Ops, Ranges, WorkKind

Values = Sequence[Any]

_LATEST_NS = 1 << 62
"""146 years after boot; a later time is garbage, and the sum of two times cannot overflow."""


@dataclass
class Process:
    """The rows of one process."""

    pid: int
    device: Growing = field(default_factory=lambda: Growing(DeviceWork))
    calls: Growing = field(default_factory=lambda: Growing(HostCalls))
    ranges: Growing = field(default_factory=lambda: Growing(Ranges))
    ops: Growing = field(default_factory=lambda: Growing(Ops))
    rccl: list[RcclCall] = field(default_factory=list)
    names: Interned = field(default_factory=Interned)
    texts: Interned = field(default_factory=Interned)
    threads: Interned = field(default_factory=Interned)
    lost: Counter[str] = field(default_factory=Counter)
    queues: list[Int64] = field(default_factory=list)
    """The hardware queues, row by row of `device`: they stand in where no stream was recorded."""

    def add_kernels(
        self,
        begin: Values,
        end: Values,
        names: Values,
        device: Values,
        stream: Values,
        queue: Values,
        correlation: Values,
    ) -> None:
        """Kernel dispatches; `device` is ordinals."""
        start, finish, keep = self._times(begin, end)
        self.device.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            kind=int(WorkKind.KERNEL),
            name=self._names([kernel_name(_text(name)) for name in _selected(names, keep)]),
            device=_ordinals(ids_of(_selected(device, keep))),
            stream=ids_of(_selected(stream, keep)),
            correlation=ids_of(_selected(correlation, keep)),
            size_bytes=MISSING,
            direction=0,
        )
        self.queues.append(ids_of(_selected(queue, keep)))

    def add_copies(
        self,
        begin: Values,
        end: Values,
        names: Values,
        device: Values,
        stream: Values,
        correlation: Values,
        size_bytes: Values,
    ) -> None:
        """Copies and sets; the name gives kind and direction."""
        start, finish, keep = self._times(begin, end)
        kept = [_text(name) for name in _selected(names, keep)]
        self.device.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            kind=np.asarray([int(copy_kind(name)) for name in kept], np.int64),
            name=self._names(kept),
            device=_ordinals(ids_of(_selected(device, keep))),
            stream=ids_of(_selected(stream, keep)),
            correlation=ids_of(_selected(correlation, keep)),
            size_bytes=np.maximum(ids_of(_selected(size_bytes, keep)), MISSING),
            direction=np.asarray([int(direction_of(name)) for name in kept], np.int64),
        )
        self.queues.append(np.full(len(start), MISSING, np.int64))

    def add_host(
        self,
        domain: str,
        begin: Values,
        end: Values,
        names: Values,
        tids: Values,
        correlation: Values,
        arguments: Values | None = None,
    ) -> None:
        """Host calls of one domain (`HIP_RUNTIME_API`, `MARKER_CORE_API`, `RCCL_API`, …), each to its table."""
        start, finish, keep = self._times(begin, end)
        kept = [_text(name) for name in _selected(names, keep)]
        threads = self.threads_of(_selected(tids, keep))
        kind = domain_of(domain)
        if kind is Domain.MARKER:
            self.ranges.append(len(start), start_ns=start, end_ns=finish, name=self._names(kept), thread=threads)
            return
        ids = ids_of(_selected(correlation, keep))
        moves = np.zeros(len(start), np.bool_)
        if kind is Domain.RCCL:
            moves = np.asarray([rccl_kind(name) is not None for name in kept], np.bool_)
            given = [None] * len(kept) if arguments is None else _selected(arguments, keep)
            rows = zip(start.tolist(), finish.tolist(), threads.tolist(), kept, ids.tolist(), given, strict=True)
            self.rccl += [RcclCall(*row) for row in rows]
        number = self._names(kept)
        for table, rows_of in ((self.ranges, moves), (self.calls, ~moves)):
            if rows_of.any():
                more = {"correlation": ids[rows_of]} if table is self.calls else {}
                table.append(
                    int(rows_of.sum()),
                    start_ns=start[rows_of],
                    end_ns=finish[rows_of],
                    name=number[rows_of],
                    thread=threads[rows_of],
                    **more,
                )

    def add_ops(self, begin: Values, end: Values, names: Values, tids: Values, shapes: Values) -> None:
        """Framework operators, where a profiler saw them."""
        start, finish, keep = self._times(begin, end)
        texts = [_text(shape) for shape in _selected(shapes, keep)]
        self.ops.append(
            len(start),
            start_ns=start,
            end_ns=finish,
            name=self._names([_text(name) for name in _selected(names, keep)]),
            thread=self.threads_of(_selected(tids, keep)),
            shapes=np.asarray([self.texts[text] if text else MISSING for text in texts], np.int64),
        )

    def threads_of(self, tids: Values) -> Int64:
        """The numbers of threads in `Trace.threads`."""
        ids = self.threads
        return np.asarray([ids[tid] if tid >= 0 else MISSING for tid in ids_of(tids).tolist()], np.int64)

    def _names(self, names: Sequence[str]) -> Int64:
        ids = self.names
        return np.asarray([ids[name] for name in names], np.int64)

    def _times(self, begin: Values, end: Values) -> tuple[Int64, Int64, Any]:
        """Begin and end of the rows that have a begin, and the mask of those rows."""
        start, finish = ids_of(begin), ids_of(end)
        keep = (start > 0) & (start < _LATEST_NS)
        self.lost["have no time that can be read and were left out"] += int((~keep).sum())
        start, finish = start[keep], finish[keep]
        unfinished = (finish <= 0) | (finish >= _LATEST_NS)
        backward = ~unfinished & (finish < start)
        self.lost["have no end; they count as instants"] += int(unfinished.sum())
        self.lost["end before they begin; they count as instants"] += int(backward.sum())
        return start, np.where(unfinished | backward, start, finish), keep


def _ordinals(devices: Int64) -> Int32:
    return np.where((devices >= 0) & (devices < 1 << 16), devices, MISSING).astype(np.int32)


def _selected(values: Values, keep: Any) -> Values:
    return values if keep.all() else [value for value, kept in zip(values, keep.tolist(), strict=True) if kept]


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
