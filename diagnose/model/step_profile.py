"""What the counted steps of one rank consist of: kernels and operators as tables, and some steps as a timeline.

It is what a person explores after the verdict. It is kept apart from `Diagnosis`, which stays small.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.model.finding import Place


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All launches of one kernel, or all copies or sets of one kind, in the counted steps."""

    name: str
    """As the profiler wrote it."""
    kind: str
    """Its class: `matmul`, `pointwise`, `copy`, …"""
    total_ns: int
    """Device time of all counted steps; overlap counts twice."""
    count: int
    operator: str | None = None
    """The operator that launched most of it; None where none is recorded."""
    module: str | None = None
    """The module that operator ran in, outermost first, joined by dots."""
    place: Place | None = None
    """The line that called that operator."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All calls of one operator in the counted steps."""

    name: str
    host_ns: int
    """On the host, without the operators in it."""
    device_ns: int
    """Of the device work that it launched itself."""
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
    """What each span is: an index into `Timeline.labels`."""
    look: tuple[int, ...]
    """The class of each: an index into `Timeline.looks`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A few counted steps, span by span."""

    begin_ns: int
    """On the recording's clock."""
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
    """Those with the most device time first, or with the most host time where no device was recorded."""
    timeline: Timeline | None = None
