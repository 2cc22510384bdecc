"""A recording as Chrome trace events with tracks of our own, for ui.perfetto.dev and chrome://tracing.

    diagnose      steps, causes of idle time, findings (the longest stretch of each in the step of median length)
    device 0      a track a stream
    host          a track a thread: ranges, operators, runtime calls, Python calls

Whatever wrote the recording, this is one format; times are microseconds from its first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from diagnose.measure import Measures
from diagnose.measure.views.kernel_classes import KernelClass
from diagnose.model import Diagnosis
from diagnose.report.style.vocabulary import class_look
from diagnose.report.wording.phrases import gain, sentence
from diagnose.trace import Trace
from diagnose.trace.schema import Int64
from diagnose.units import printable

_OURS, _DEVICE, _HOST = 1, 2, 3
_PER_RANK = 10
"""Numbers of processes that a rank takes."""

Event = dict[str, Any]


def render(traces: Sequence[Trace], diagnosis: Diagnosis) -> bytes:
    """The JSON of all ranks."""
    events: list[Event] = []
    for number, trace in enumerate(traces):
        measures = Measures(trace)
        tables = (trace.device, trace.calls, trace.ops, trace.frames, trace.ranges)
        firsts = [int(table.start_ns.min()) for table in tables if len(table)]
        begin_ns = min([*firsts, *measures.steps.start_ns[:1].tolist()], default=0)
        base = _PER_RANK * number
        named = f" of rank {trace.rank}" if len(traces) > 1 and trace.rank is not None else ""
        events += _ours(measures, diagnosis, base + _OURS, begin_ns, named)
        events += _device(measures, base + _DEVICE, begin_ns, named)
        events += _host(trace, base + _HOST, begin_ns, named)
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events})


def _ours(measures: Measures, diagnosis: Diagnosis, pid: int, begin_ns: int, named: str) -> Iterator[Event]:
    yield from _process(pid, f"diagnose{named}", -1)
    yield from (_thread(pid, tid, name) for tid, name in ((1, "steps"), (2, "idle by cause"), (3, "findings")))
    steps = measures.steps
    for number, (start, end) in enumerate(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)):
        yield _span(pid, 1, f"step {number + 1}", "step", start, end, begin_ns)
    for cause, times in measures.idle.items():
        for start, end in times:
            yield _span(pid, 2, class_look(cause).label, "idle", int(start), int(end), begin_ns)
    for finding in diagnosis.findings:
        if finding.example_ns is not None and finding.rank in (None, measures.trace.rank):
            said = {"summary": sentence(finding.summary), "gives back": gain(finding)}
            start, end = finding.example_ns
            yield _span(pid, 3, finding.rule, "finding", start, end, begin_ns) | {"args": said}


def _device(measures: Measures, pid: int, begin_ns: int, named: str) -> Iterator[Event]:
    trace, device = measures.trace, measures.trace.device
    for number, ordinal in enumerate(np.unique(device.device).tolist()):
        process = pid if number == 0 else 1000 + 100 * pid + number
        yield from _process(process, f"device {max(ordinal, 0)}{named}", number)
        rows = np.flatnonzero(device.device == ordinal)
        streams, tids = np.unique(device.stream[rows], return_inverse=True)
        yield from (_thread(process, tid, f"stream {stream}") for tid, stream in enumerate(streams.tolist()))
        for row, tid in zip(rows.tolist(), tids.ravel().tolist(), strict=True):
            kind = KernelClass(int(measures.classes[row])).name.lower()
            name = _name(trace, int(device.name[row]), kind)
            yield _span(process, tid, name, kind, int(device.start_ns[row]), int(device.end_ns[row]), begin_ns)


def _host(trace: Trace, pid: int, begin_ns: int, named: str) -> Iterator[Event]:
    yield from _process(pid, f"host{named}", 100)
    tables = (("range", trace.ranges), ("operator", trace.ops), ("call", trace.calls), ("python", trace.frames))
    seen = sorted({thread for _, table in tables for thread in np.unique(table.thread).tolist()})
    for thread in seen:
        known = trace.threads[thread] if 0 <= thread < len(trace.threads) else None
        yield _thread(pid, thread + 1, (known.name or f"thread {known.tid}") if known else "thread")
    for kind, table in tables:
        columns: tuple[Int64, ...] = (table.start_ns, table.end_ns)
        for start, end, name, thread in zip(
            *(column.tolist() for column in columns), table.name.tolist(), table.thread.tolist(), strict=True
        ):
            yield _span(pid, thread + 1, _name(trace, name, kind), kind, start, end, begin_ns)


def _name(trace: Trace, name: int, otherwise: str) -> str:
    return printable(trace.names[name]) if name >= 0 else otherwise


def _span(pid: int, tid: int, name: str, kind: str, start: int, end: int, begin_ns: int) -> Event:
    times = {"ts": (start - begin_ns) / 1000, "dur": max(end - start, 0) / 1000}
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": kind, **times}


def _process(pid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": order}}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": printable(name)}}
