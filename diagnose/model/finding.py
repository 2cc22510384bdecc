"""A finding: its rule, its cost, its evidence, and its place."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Self

Number = int | float
Scalar = int | float | str | bool | None


class Severity(enum.StrEnum):
    """Classes of the share of a step that a finding is sure to give back; never taken from absolute times."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NOTE = "note"

    @classmethod
    def of_share(cls, share: float) -> Severity:
        """The severity of a finding that is sure to give back `share` (0 to 1) of the step."""
        for severity, floor in _SEVERITY_FLOOR.items():
            if share >= floor:
                return severity
        return cls.NOTE

    @property
    def rank(self) -> int:
        """0 for the most severe; for sorting and for `--fail-on`."""
        return list(Severity).index(self)


_SEVERITY_FLOOR = {Severity.HIGH: 0.10, Severity.MEDIUM: 0.05, Severity.LOW: 0.02}


class Confidence(enum.StrEnum):
    """The basis of a finding's recoverable time."""

    MEASURED = "measured"
    """Proven by the trace or by an experiment."""
    BOUND = "bound"
    """An upper limit: the step cannot give back more than this."""
    HINT = "hint"
    """A known pattern whose cost is unknown here, or an estimate that may be too low as well as too high."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of source that a finding points at."""

    file: str
    line: int
    code: str | None = None
    """The text of the line, stripped; None where the file could not be read."""
    function: str | None = None
    share: float | None = None
    """This line's part (0 to 1) of the finding's time, where it was sampled."""

    @classmethod
    def at(cls, there: Any) -> Self:
        """The line that a site or a frame of a stack names."""
        return cls(there.file, there.line, function=there.function)


class EventTable(enum.StrEnum):
    """The tables of a trace whose rows can stand behind a number."""

    DEVICE = "device"
    CALLS = "calls"
    OPS = "ops"
    RANGES = "ranges"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event of the recording behind a number."""

    name: str
    begin_ns: int
    """On the recording's clock."""
    length_ns: int
    step: int
    """The number of its step among the counted steps, from 0."""
    since_step_ns: int
    """From the begin of that step; negative for what the host began before the first one."""
    lane: str
    """The stream of the device or the thread of the host, as the timeline names it."""
    where: Place | None = None
    """The line that caused it, where the recording tells."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that proves a finding."""

    measure: str
    value: Number
    unit: str
    """`ns`, `bytes`, `share`, `count`, or a unit that is printed as it stands."""
    rows: tuple[int, ...] = ()
    """Rows of `table` that the measure was taken from: all of them in a claim, those of `events` in a finding."""
    table: EventTable = EventTable.DEVICE
    """The table of the trace that has the rows."""
    row_count: int = 0
    """How many rows the measure was taken from; 0 where that was not recorded."""
    events: tuple[TraceEvent, ...] = ()
    """The longest of these rows, the longest first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One bottleneck: what it is, what it costs per step, what proves it, and where it is."""

    rule: str
    severity: Severity
    rank: int | None
    recoverable_ns: int
    """Time per step that would be saved if the cause were gone, as far as that is sure; no nanosecond is claimed by two
    findings."""
    share: float
    """`recoverable_ns` over `Diagnosis.step_ns`; `severity` is that of this share."""
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Place, ...] = ()
    fixers: tuple[str, ...] = ()
    confirm: str | None = None
    """A measurement that would confirm it, where the confidence is less than measured."""
    ends_run: bool = False
    """Whether the run ends of it sooner or later, or did, whatever it costs per step."""
    short_of_memory: bool = False
    """Whether memory is what is short: a fix that frees a good part of it is worth having though it saves no time."""
    example_ns: tuple[int, int] | None = None
    """Begin and end of the longest stretch of its time in the step of median length, on the recording's clock; None
    where it claims no time there."""
    possible_ns: int | None = None
    """The most that `recoverable_ns` may be, with a part that is in doubt, such as one that may be the profiler's; None
    where nothing is."""
    possible_share: float | None = None
    """`possible_ns` over `Diagnosis.step_ns`."""
    ruled_out: tuple[str, ...] = ()
    """Other causes that look like this one and are ruled out, each with the value that does so."""

    @property
    def asks_for_time(self) -> bool:
        """Whether a fix has to make the step shorter to be worth having."""
        return not (self.ends_run or self.short_of_memory)

    @property
    def estimate_ns(self) -> int:
        """The best estimate of what would be saved per step, sure or not: what a trial is predicted to measure."""
        return self.recoverable_ns if self.possible_ns is None else self.possible_ns

    @property
    def estimate_share(self) -> float:
        """`estimate_ns` over `Diagnosis.step_ns`."""
        return self.share if self.possible_share is None else self.possible_share

    def of_step(self, step_ns: int) -> Finding:
        """The finding with shares and severity of a step of `step_ns`; one that ended the run stays as severe."""
        ended = self.ends_run and self.severity.rank < Severity.of_share(self.share).rank
        share = _share(self.recoverable_ns, step_ns)
        return replace(
            self,
            share=share,
            severity=self.severity if ended else Severity.of_share(share),
            possible_share=None if self.possible_ns is None else _share(self.possible_ns, step_ns),
        )

    def with_doubtful(self) -> Finding:
        """The finding with all that it may come to, in doubt or not: for whoever goes on to measure it."""
        if self.possible_ns is None:
            return self
        severity = Severity.of_share(self.estimate_share)
        return replace(
            self,
            recoverable_ns=self.possible_ns,
            share=self.estimate_share,
            severity=min(severity, self.severity, key=lambda one: one.rank),
            possible_ns=None,
            possible_share=None,
        )


def _share(part_ns: int, step_ns: int) -> float:
    return min(part_ns / step_ns, 1.0) if step_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A rule that could not decide, and what would have to be recorded so that it could."""

    rule: str
    needs: str
