"""The interface of a rule: a pure function from the measures of one rank to claims about its time.

It names an ailment, never a cure. A file in `rules/` takes from here what it is made of, and from `diagnose.measure`
and `diagnose.trace` what it needs to look at a recording. Its docstring is its documentation, under the headings *What
it finds*, *Why it costs*, *What proves it*, *What fixes it*; `diagnose explain NAME` prints it. It ends in
`RULE = Rule(...)` with drawn examples: at least one that fires, and at least one that looks alike and must stay silent.
Shared tests run them all.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from diagnose.measure import Measures
from diagnose.measure.job.ranks import Job
from diagnose.measure.replay.replay import Cut
from diagnose.model import CannotTell, Confidence, EventTable, Evidence, Facts, Finding, Place, Scalar, Site
from diagnose.trace import Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.units import format_bytes, format_count, format_ns, format_share, format_times

__all__ = [
    "SHORTEN_DEVICE_WORK",
    "CannotTell",
    "Claim",
    "Confidence",
    "EventTable",
    "Evidence",
    "Facts",
    "Finding",
    "Intervals",
    "JobClaim",
    "Measures",
    "Place",
    "Rule",
    "Scalar",
    "Site",
    "Symptom",
    "Trace",
    "drawn",
    "format_bytes",
    "format_count",
    "format_ns",
    "format_share",
    "format_times",
    "nothing_alone",
]


SHORTEN_DEVICE_WORK = (
    "fp32-matmul",
    "low-precision-headroom",
    "unfused-attention",
    "unfused-pointwise",
    "memory-bound",
    "slow-optimizer",
    "layout-transposes",
)
"""Ailments whose cure shortens the device's work: what a claim waits for that counts `once` the step is shorter."""


@dataclass(frozen=True)
class Claim:
    """A rule's claim about one rank: a finding before it is ranked against the others.

    The engine turns claims into findings: it takes time away from a claim that one nearer the source explains, divides
    by the steps, and sets severity and share.
    """

    summary: str
    recoverable_ns: int = 0
    """The recoverable time over all counted steps together; 0 for a note, which claims no time."""
    claims: Intervals = field(default_factory=Intervals.empty)
    """The stretches of time that the claim wants back, within the counted steps."""
    confidence: Confidence = Confidence.MEASURED
    evidence: Sequence[Evidence] = ()
    where: Sequence[Place] = ()
    fixers: Sequence[str] | None = None
    """None: the rule's own."""
    confirm: str | None = None
    unseen_ns: int = 0
    """Besides, per step: what a live run loses in steps that are not among the counted ones, averaged over all."""
    ends_run: bool = False
    """Whether the run ends of it, or did: then it comes before what only costs little."""
    ended_run: bool = False
    """Whether the run did end of it: nothing is more severe."""
    short_of_memory: bool = False
    """Whether memory is what is short: then a fix is kept for what it frees, too."""
    sure: float = 1.0
    """The part of it (0 to 1) that is sure, which severity goes by."""
    knows_how_often: bool = False
    """Whether the rule has judged how often its time comes; else what a single step of several has is in doubt."""
    cut: Cut | None = field(default=None, repr=False)
    """The change of the run without the cause, for claims that come after this one; None: `claims` are gone."""
    once: Sequence[str] = ()
    """Rules whose ailments hide this one: it costs nothing while they stand, and is no finding, but is foreseen where
    they are treated (`diagnose.what_if`)."""
    least_step_ns: int = 0
    """The shortest step possible while the cause of a claim about what is to come stands, whatever else is treated."""
    ruled_out: Sequence[str] = ()
    """Other causes that look like this one and are ruled out, each with the value: `a slow link: 217 of 450 GB/s`."""


@dataclass(frozen=True)
class JobClaim:
    """A rule's claim about the ranks of a job together: a finding before the ranks' own findings are attributed.

    The time is that of the ranks that wait, and what `rank` does in it is the reason: its own findings of the same time
    become part of this one.
    """

    summary: str
    rank: int | None
    """The rank at fault."""
    member: int
    """The rank's row in the job's table."""
    recoverable_ns: int
    """The recoverable time per step."""
    share: float
    """The rank's share of the step (0 to 1)."""
    sure: float = 1.0
    """The part of it (0 to 1) that is no doing of the profiler's, which severity goes by."""
    confidence: Confidence = Confidence.MEASURED
    evidence: Sequence[Evidence] = ()
    where: Sequence[Place] = ()
    fixers: Sequence[str] | None = None
    """None: the rule's own."""
    confirm: str | None = None


Answer = Claim | CannotTell
Check = Callable[[Measures], Iterable[Answer]]
JobAnswer = JobClaim | CannotTell
JobCheck = Callable[[Job, Sequence[Sequence[Finding]]], Iterable[JobAnswer]]
"""Asked of the ranks of a job once each was asked alone: the job, and per row of its table that rank's findings."""


def nothing_alone(_measures: Measures) -> Iterable[Answer]:
    """The `check` of a rule that needs several ranks."""
    return ()


class Symptom(enum.StrEnum):
    """The symptom that a user sees, in the order in which symptoms are listed."""

    DATA = "the device waits for data"
    HOST = "the device waits for the host"
    KERNELS = "kernels take longer than they need"
    MEMORY = "memory is short, or grows"
    RANKS = "several devices wait for each other"
    OTHER = "other"


@dataclass(frozen=True)
class Rule:
    """One bottleneck."""

    name: str
    """The ailment in kebab case; reads after "this run is" or "this run has"."""
    check: Check
    fixers: tuple[str, ...] = ()
    fires: tuple[Trace, ...] = field(default=(), repr=False)
    silent: tuple[Trace, ...] = field(default=(), repr=False)
    check_job: JobCheck | None = None
    fires_job: tuple[tuple[Trace, ...], ...] = field(default=(), repr=False)
    """Jobs, a trace a rank, for which `check_job` fires."""
    silent_job: tuple[tuple[Trace, ...], ...] = field(default=(), repr=False)
    nearness: int = 50
    """How near the ailment is to its source: of two claims to the same time, the one with the smaller number wins."""
    symptom: Symptom = Symptom.OTHER
    """The symptom under which `diagnose explain` lists the rule."""
    doc: str = ""
    """Filled by the loader from the module's docstring."""
