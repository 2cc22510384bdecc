"""Traces drawn as text, for the examples of rules, for tests and for the documentation: one picture serves all three.

One line a lane, one column a millisecond; equal neighbours are one event, a blank or a dot is nothing. All colons lie
under each other:

    load: wwwwwwww
    host:         ol  ol
    gpu :           kk  kkkk
    step: |                 |

Lanes
    load  the training thread in a loader's `__next__`     opt   `optimizer.step`          step  `|` is a step's end
    gc    garbage collection    comp  compiling     ckpt  writing a checkpoint   bwd  backward   coll  collective calls
    host  what the training thread does; `host 1` is another thread
    gpu   what the device does; `gpu 7` is another stream
    line  where a sampler saw the training thread, a sample a column; letters are named by `stacks`
    call  Python calls that the profiler recorded; letters are named by `frames`
    op    operators that lie around others or in them, as wide as drawn; letters are named by `ops`. Several such lanes
          may draw one thread.

Letters of a host lane: `o` framework operator (it spans the calls drawn inside its run), `l` launch of a kernel,
`c` copy call, `G` launch of a graph, `s` stream synchronisation, `S` device synchronisation, `m` device allocation,
`f` device free, `p` Python. Letters of a gpu lane: `k` kernel, `u` kernel that nobody is known to have launched,
`c` collective, `h`/`H` pageable/pinned copy to the device, `d`/`D` pageable/pinned copy from it, `t` copy on the
device, `z` set. Any other letter is a kernel, call or operator named by `kernels`, `calls` or `ops`.

Device work takes the launch calls in the order drawn, each call one piece of work; where a drawing has no call for its
kind, work is launched just in time: by a call without length at the moment it starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diagnose.trace import Collective, StackFrame, Thread, Trace
from diagnose.trace.canvas import CALLS, Canvas, Event, draw_device, draw_host, events, start_of
from diagnose.trace.schema import MISSING, Counters, DeviceWork, Frames, HostCalls, Ops, RangeKind, Ranges, Samples

_LANE = re.compile(r"\s*([a-z]+)(?: (\d+))?\s*: ?")
_COLLECTIVE_KERNEL = "ncclDevKernel_{}"
_RANGES = {
    "load": (RangeKind.INPUT, "DataLoader.__next__"),
    "opt": (RangeKind.OPTIMIZER, "Optimizer.step"),
    "gc": (RangeKind.GC, "gc"),
    "comp": (RangeKind.COMPILE, "compile"),
    "ckpt": (RangeKind.CHECKPOINT, "torch.save"),
    "bwd": (RangeKind.BACKWARD, "backward"),
    "coll": (RangeKind.COLLECTIVE, "nccl:all_reduce"),
}


def drawn(
    text: str,
    *,
    unit_ns: int = 1_000_000,
    repeat: int = 1,
    kernels: Mapping[str, str] | None = None,
    calls: Mapping[str, str] | None = None,
    ops: Mapping[str, str] | None = None,
    frames: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[str, ...]] | None = None,
    numbered: str = "",
    counted: Mapping[str, Sequence[float]] | None = None,
    stacks: Mapping[str, Sequence[tuple[str, int, str] | StackFrame]] | None = None,
    comms: Mapping[str, Collective] | None = None,
    **known: Any,
) -> Trace:
    """The trace that `text` draws, its time starting at 0.

    `unit_ns` is the time of one column. `repeat` draws the picture so many times, one after the other. `kernels`,
    `calls`, `ops` and `frames` give names to letters; `shapes` gives an operator's letter the shapes, the number
    formats and (if known) the values of its arguments, as the JSON texts that profilers write; `numbered` are the
    letters of operators that autograd numbers; `counted` gives counters of the device (of the host: `host.…`) their
    values, from the beginning to the end; `stacks` gives a letter of the `line` lane its frames, innermost first;
    `comms` says what a letter of a gpu lane communicates. `known` sets other fields of the `Trace` (`facts`, `sites`,
    `sync_sites`, `rank`, …). A trace with a `gpu` lane is of an NVIDIA H200 unless `device_names` says otherwise.
    Raises ValueError for a picture that says nothing.
    """
    lanes = _lanes(text, repeat)
    canvas = Canvas(unit_ns)
    columns = max(len(row) for _, _, row in lanes)
    for lane, number, row in lanes:
        _draw_lane(canvas, lane, number, row, calls or {}, ops or {}, frames or {}, stacks or {})
    texts = _with_shapes(canvas, shapes or {})
    _number(canvas, numbered)
    named = {letter: _COLLECTIVE_KERNEL.format(one.kind) for letter, one in (comms or {}).items()} | dict(kernels or {})
    draw_device(canvas, [(number, row) for lane, number, row in lanes if lane == "gpu"], named, tuple(comms or ()))
    has_device = any(lane == "gpu" for lane, _, _ in lanes)
    counters = _counters(canvas, counted or {}, columns * unit_ns)
    trace = Trace(
        source="drawing",
        names=tuple(canvas.names),
        texts=texts,
        threads=tuple(Thread(1, 1 + index, "main" if index == 0 else "") for index in range(canvas.threads)),
        collectives=(Collective("all_reduce"), *(comms or {}).values()),
        stacks=tuple(canvas.stacks),
        device_names=("NVIDIA H200",) if has_device else (),
        window_ns=(0, columns * unit_ns),
        device=DeviceWork.build(_columns(canvas.device)).sorted_by_start(),
        calls=HostCalls.build(_columns(canvas.calls)).sorted_by_start(),
        ops=Ops.build(_columns(canvas.ops)).sorted_by_start(),
        frames=Frames.build(_columns(canvas.frames)).sorted_by_start(),
        ranges=Ranges.build(_columns(canvas.ranges)).sorted_by_start(),
        samples=Samples.build(_columns(canvas.samples)).sorted_by_start(),
        counters=counters,
    )
    return replace(trace, **known)


def _lanes(text: str, repeat: int) -> list[tuple[str, int, str]]:
    found = []
    for line in filter(str.strip, text.splitlines()):
        match = _LANE.match(line)
        if match is None or match[1] not in {*_RANGES, "host", "op", "gpu", "line", "call", "step"}:
            raise ValueError(f"no lane is called as in {line!r}")
        found.append((match, line))
    if not found:
        raise ValueError("the drawing is empty")
    if len({line.index(":") for _, line in found}) > 1:
        raise ValueError("the colons of a drawing must lie under each other")
    origin = found[0][1].index(":") + 2
    rows = [(match[1], int(match[2] or 0), line[origin:].rstrip()) for match, line in found]
    # A step's mark lies on the border of two columns: after the last one, it does not widen the picture.
    width = max(len(row) - 1 if lane == "step" else len(row) for lane, _, row in rows)
    return [(lane, number, _repeated(row, width, repeat)) for lane, number, row in rows]


def _repeated(row: str, width: int, repeat: int) -> str:
    marks = {
        column + turn * width: letter for turn in range(repeat) for column, letter in enumerate(row) if letter != " "
    }
    return "".join(marks.get(column, " ") for column in range(max(marks, default=-1) + 1))


def _draw_lane(
    canvas: Canvas,
    lane: str,
    number: int,
    row: str,
    calls: Mapping[str, str],
    ops: Mapping[str, str],
    frames: Mapping[str, str],
    stacks: Mapping[str, Sequence[tuple[str, int, str] | StackFrame]],
) -> None:
    if lane == "host":
        canvas.threads = max(canvas.threads, number + 1)
        draw_host(canvas, number, row, CALLS | dict(calls), {"o": "aten::op"} | dict(ops))
    elif lane == "op":
        for event in events(row):
            named = {"name": canvas.name(ops[event.letter]), "thread": number, "letter": event.letter}
            canvas.ops.append(canvas.span(event) | named)
    elif lane in _RANGES:
        kind, name = _RANGES[lane]
        for event in events(row):
            canvas.ranges.append(canvas.span(event) | {"kind": kind, "name": canvas.name(name), "thread": number})
    elif lane == "step":
        for column, letter in enumerate(row):
            if letter == "|":
                mark = canvas.span(Event("|", column, column))
                canvas.ranges.append(
                    mark | {"kind": RangeKind.OPTIMIZER, "name": canvas.name("Optimizer.step"), "thread": 0}
                )
    elif lane == "call":
        for event in events(row):
            canvas.frames.append(canvas.span(event) | {"name": canvas.name(frames[event.letter]), "thread": number})
    elif lane == "line":
        for column, letter in enumerate(row):
            if letter in stacks:
                stack = tuple(
                    frame if isinstance(frame, StackFrame) else StackFrame(*frame) for frame in stacks[letter]
                )
                middle = column * canvas.unit_ns + canvas.unit_ns // 2
                index = canvas.stacks.setdefault(stack, len(canvas.stacks))
                canvas.samples.append({"time_ns": middle, "stack": index})


def _with_shapes(canvas: Canvas, shapes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Give operators the places of their texts, and return the texts."""
    texts = tuple(dict.fromkeys(text for pair in shapes.values() for text in pair))
    unknown = [MISSING] * 3
    places = {letter: [*map(texts.index, given), *unknown][:3] for letter, given in shapes.items()}
    for row in canvas.ops:
        row["shapes"], row["dtypes"], row["values"] = places.get(row["letter"], unknown)
    return texts


def _number(canvas: Canvas, numbered: str) -> None:
    """Give operators the numbers that autograd would."""
    number = 0
    for row in sorted(canvas.ops, key=start_of):
        row["sequence"] = number if row["letter"] in numbered else MISSING
        number += row["letter"] in numbered


def _counters(canvas: Canvas, counted: Mapping[str, Sequence[float]], length_ns: int) -> Counters:
    """Each counter's values, evenly over the time of the drawing."""
    rows = [
        (length_ns * place // max(len(values) - 1, 1), canvas.name(name), -1 if name.startswith("host.") else 0, value)
        for name, values in counted.items()
        for place, value in enumerate(values)
    ]
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    keys = ("time_ns", "name", "device", "value")
    return Counters.build({key: list(column) for key, column in zip(keys, columns, strict=True)}).sorted_by_start()


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]] | None:
    if not rows:
        return None
    return {key: [row[key] for row in rows] for key in rows[0] if key != "letter"}
