"""The contents of one rank's counted steps: kernels and operators as tables, and some steps as a timeline.

It is what a person explores after the verdict. It is kept apart from `Diagnosis`, which stays small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diagnose.model.finding import Place


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all copies or sets of one kind, in the counted steps."""

    name: str
    """The kernel's name as the profiler wrote it."""
    kind: str
    """The kernel's class: `matmul`, `pointwise`, `copy`, …"""
    total_ns: int
    """Device time of all counted steps; overlap counts twice."""
    count: int
    operator: str | None = None
    """The operator that launched most of it; None where none is recorded."""
    module: str | None = None
    """The module that operator ran in, outermost first, joined by dots."""
    place: Place | None = None
    """The line that called that operator."""
    flops: int | None = None
    """Floating-point operations of the launches whose operations and bytes are known; None where none's are."""
    moved_bytes: int | None = None
    """Bytes that the same launches read from memory and write to it."""
    known_ns: int = 0
    """Device time of the same launches."""
    format: str | None = None
    """The number format of products; None for all else, and where nobody knows."""


@dataclass(frozen=True, slots=True)
class Roof:
    """The ceilings of the device."""

    flops_per_s: Mapping[str, float]
    """The device's rate by number format."""
    bytes_per_s: float
    """The device's memory bandwidth."""
    source: str
    """`data sheet of …`, or `measured`."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call of Python functions, and the samples of the training thread that saw it: a box of a flame graph."""

    depth: int
    """0 for the outermost."""
    begin: int
    """Samples in the boxes to its left."""
    samples: int
    function: str
    file: str
    line: int
    owned: bool
    """Whether the file is the user's own."""


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One counter over the run; several readings may be summed up in one point, as their mean."""

    name: str
    device: int
    """-1 for the host."""
    time_ns: tuple[int, ...]
    """The time since the first reading of any counter."""
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All calls of one operator in the counted steps."""

    name: str
    host_ns: int
    """Time on the host, without that of operators called within."""
    device_ns: int
    """Time of the device work that it launched itself."""
    count: int
    module: str | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """Spans that do not overlap, in the order of time: a stream, a level of a thread's calls, the causes of idle time.

    The columns are equally long; times are nanoseconds from the begin of the timeline.
    """

    name: str
    kind: str
    """`gaps`, `device` or `host`."""
    start_ns: tuple[int, ...]
    length_ns: tuple[int, ...]
    label: tuple[int, ...]
    """The label of each span: an index into `Timeline.labels`."""
    look: tuple[int, ...]
    """The class of each: an index into `Timeline.looks`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A few counted steps, span by span."""

    begin_ns: int
    """Its begin on the recording's clock."""
    steps_ns: tuple[int, ...]
    """The borders of the steps from the begin: one more than there are steps; the first is 0."""
    first_step: int
    """The number of the first of them among the counted steps, from 0."""
    labels: tuple[str, ...]
    looks: tuple[str, ...]
    lanes: tuple[Lane, ...]
    joined_below_ns: int = 0
    """Neighbours that are shorter and closer than this are joined to one span, which looks like the longest of them; 0
    where none are."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One rank's counted steps. Times of the tables are of all of them together."""

    rank: int | None
    step_count: int
    total_ns: int
    """The length of all counted steps."""
    kernels: tuple[KernelRow, ...] = ()
    """The longest first."""
    operators: tuple[OperatorRow, ...] = ()
    """The operators with the most device time first; with the most host time where no device was recorded."""
    timeline: Timeline | None = None
    roof: Roof | None = None
    """None where the device's ceilings are unknown."""
    calls: tuple[SampledCall, ...] = ()
    """The calls in which samples found the training thread after the first steps; by depth, then from the left."""
    counters: tuple[CounterSeries, ...] = ()
