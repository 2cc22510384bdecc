"""The canvas of drawn traces: calls and operators of host threads, and device work with the calls that launched it.

The letters are those of `diagnose.trace.drawn`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diagnose.trace import StackFrame
from diagnose.trace.schema import MISSING, CopyDirection, Memory, WorkKind

CALLS = {
    "l": "cudaLaunchKernel",
    "c": "cudaMemcpyAsync",
    "G": "cudaGraphLaunch",
    "s": "cudaStreamSynchronize",
    "S": "cudaDeviceSynchronize",
    "m": "cudaMalloc",
    "f": "cudaFree",
}
"""The letters of a host lane that are calls."""
_KERNELS = {
    "k": "kernel",
    "u": "kernel",
    "c": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_COPIES = {
    "h": ("Memcpy HtoD (Pageable -> Device)", CopyDirection.HOST_TO_DEVICE, Memory.PAGEABLE),
    "H": ("Memcpy HtoD (Pinned -> Device)", CopyDirection.HOST_TO_DEVICE, Memory.PINNED),
    "d": ("Memcpy DtoH (Device -> Pageable)", CopyDirection.DEVICE_TO_HOST, Memory.PAGEABLE),
    "D": ("Memcpy DtoH (Device -> Pinned)", CopyDirection.DEVICE_TO_HOST, Memory.PINNED),
    "t": ("Memcpy DtoD (Device -> Device)", CopyDirection.DEVICE_TO_DEVICE, Memory.UNKNOWN),
}
_SET = "Memset (Device)"
_BYTES_PER_NS = 10  # a copy moves 10 GB/s, the order of a PCIe link


@dataclass(frozen=True)
class Event:
    """A run of equal letters: one event, its place in columns."""

    letter: str
    start: int
    end: int


@dataclass
class Canvas:
    """The rows of a trace while they are drawn; each has its `letter` beside the columns."""

    unit_ns: int
    names: dict[str, int] = field(default_factory=dict)
    device: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    frames: list[dict[str, Any]] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[tuple[StackFrame, ...], int] = field(default_factory=dict)
    threads: int = 1

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def span(self, event: Event) -> dict[str, Any]:
        return {"start_ns": event.start * self.unit_ns, "end_ns": event.end * self.unit_ns}


def events(row: str) -> Iterator[Event]:
    """The events of a lane."""
    for match in re.finditer(r"([^\s.])\1*", row):
        yield Event(match[1], match.start(), match.end())


def draw_host(canvas: Canvas, thread: int, row: str, calls: Mapping[str, str], ops: Mapping[str, str]) -> None:
    """Calls and operators of one thread. Raises ValueError for a letter that means neither."""
    for event in events(row):
        if event.letter in calls:
            name = canvas.name(calls[event.letter])
            made = canvas.span(event) | {"name": name, "thread": thread, "correlation": MISSING, "letter": event.letter}
            canvas.calls.append(made)
        elif event.letter not in ops and event.letter != "p":
            raise ValueError(f"a host lane knows no letter {event.letter!r}")
    nested = "".join(re.escape(letter) for letter in calls)
    for letter, operator in ops.items():
        for match in re.finditer(rf"{re.escape(letter)}[{re.escape(letter)}{nested}]*", row):
            event = Event(letter, match.start(), match.end())
            canvas.ops.append(canvas.span(event) | {"name": canvas.name(operator), "thread": thread, "letter": letter})


def draw_device(
    canvas: Canvas, lanes: Sequence[tuple[int, str]], kernels: Mapping[str, str], comms: Sequence[str] = ()
) -> None:
    """Device work of all streams, each piece with the call that launched it.

    Raises ValueError for work before its launch, and for a launch without work.
    """
    launches = {kind: deque(sorted(_calls_of(canvas, kind), key=start_of)) for kind in ("l", "c", "G")}
    drawn_kinds = {kind for kind, queue in launches.items() if queue}
    places = sorted(((event.start, stream, event) for stream, row in lanes for event in events(row)), key=_place)
    for number, (_, stream, event) in enumerate(places, start=1):
        row: dict[str, Any] = canvas.span(event) | {"device": 0, "stream": stream} | _work(canvas, event, kernels)
        if event.letter in comms:
            row["collective"] = 1 + comms.index(event.letter)
        kind = "l" if row["kind"] == WorkKind.KERNEL else "c"
        kind = "G" if kind == "l" and "G" in drawn_kinds and "l" not in drawn_kinds else kind
        if event.letter == "u":
            row["correlation"] = MISSING
        elif kind in drawn_kinds:
            row["correlation"] = _correlation_of(launches[kind], row, number, keep=kind == "G")
        else:
            row["correlation"] = number
            at = {"start_ns": row["start_ns"], "end_ns": row["start_ns"]}
            caller = {"name": canvas.name(CALLS[kind]), "thread": 0, "correlation": number, "letter": kind}
            canvas.calls.append(at | caller)
        canvas.device.append(row)
    for call in (*launches["l"], *launches["c"]):
        raise ValueError(f"no device work is drawn for the launch at {call['start_ns']} ns")


def _correlation_of(queue: deque[dict[str, Any]], row: Mapping[str, Any], number: int, *, keep: bool) -> int:
    """The correlation of the launch that a piece of work takes; one graph launch serves work until the next begins."""
    while keep and len(queue) > 1 and queue[1]["start_ns"] <= row["start_ns"]:
        queue.popleft()
    if not queue or queue[0]["start_ns"] > row["start_ns"]:
        raise ValueError(f"no launch is drawn before the device work at {row['start_ns']} ns")
    call = queue[0] if keep else queue.popleft()
    if call["correlation"] == MISSING:
        call["correlation"] = number
    return int(call["correlation"])


def _work(canvas: Canvas, event: Event, kernels: Mapping[str, str]) -> dict[str, Any]:
    size = (event.end - event.start) * canvas.unit_ns * _BYTES_PER_NS
    if event.letter in kernels:
        return {"kind": WorkKind.KERNEL, "name": canvas.name(kernels[event.letter]), **_NOT_A_COPY}
    if event.letter in _COPIES:
        name, direction, memory = _COPIES[event.letter]
        copy = {"size_bytes": size, "direction": direction, "host_memory": memory, "collective": MISSING}
        return {"kind": WorkKind.COPY, "name": canvas.name(name), **copy}
    if event.letter == "z":
        return {"kind": WorkKind.SET, "name": canvas.name(_SET), **(_NOT_A_COPY | {"size_bytes": size})}
    if event.letter not in _KERNELS:
        raise ValueError(f"a gpu lane knows no letter {event.letter!r}; name it with kernels={{…}}")
    collective = 0 if event.letter == "c" else MISSING
    return (
        {"kind": WorkKind.KERNEL, "name": canvas.name(_KERNELS[event.letter])}
        | _NOT_A_COPY
        | {"collective": collective}
    )


_NOT_A_COPY: dict[str, Any] = {
    "size_bytes": MISSING,
    "direction": CopyDirection.UNKNOWN,
    "host_memory": Memory.UNKNOWN,
    "collective": MISSING,
}


def _calls_of(canvas: Canvas, letter: str) -> list[dict[str, Any]]:
    return [call for call in canvas.calls if call["letter"] == letter]


def start_of(row: Mapping[str, Any]) -> int:
    return int(row["start_ns"])


def _place(work: tuple[int, int, Event]) -> tuple[int, int]:
    return work[0], work[1]
