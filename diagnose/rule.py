"""All that a file in `rules/` needs to import.

A rule is a pure function from the measures of one rank to claims about its time. It names an ailment, never a cure.
The file's docstring is its documentation, under the headings *What it finds*, *Why it costs*, *What proves it*,
*What fixes it*; `diagnose explain NAME` prints it. The file ends in `RULE = Rule(...)` with drawn examples: at least
one that fires, and at least one that looks alike and must stay silent. Shared tests run them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from diagnose.measure import Measures
from diagnose.measure.activity import ALLOCATIONS
from diagnose.measure.idle import LATENCY_NS, REFILL_NS
from diagnose.measure.kernels import KernelClass, matmul_format
from diagnose.measure.recoverable import (
    gained_ns,
    recoverable_ns,
    scaled_ns,
    sped_up,
    without,
    without_waiting_ns,
    without_waits,
)
from diagnose.measure.replay import Cut
from diagnose.measure.samples import sampled
from diagnose.measure.shapes import dtypes_of, shapes_of
from diagnose.model import CannotTell, Confidence, Evidence, Facts, Place, Scalar, Site, SyncSite
from diagnose.trace import StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import CopyDirection, Counters, Int64, Memory, RangeKind, StepLog, WorkKind
from diagnose.units import format_bytes, format_ns, format_share

__all__ = [
    "ALLOCATIONS",
    "LATENCY_NS",
    "REFILL_NS",
    "CannotTell",
    "Claim",
    "Confidence",
    "CopyDirection",
    "Counters",
    "Cut",
    "Evidence",
    "Facts",
    "Int64",
    "Intervals",
    "KernelClass",
    "Measures",
    "Memory",
    "Place",
    "RangeKind",
    "Rule",
    "Scalar",
    "Site",
    "StackFrame",
    "StepLog",
    "SyncSite",
    "Trace",
    "WorkKind",
    "drawn",
    "dtypes_of",
    "format_bytes",
    "format_ns",
    "format_share",
    "gained_ns",
    "matmul_format",
    "recoverable_ns",
    "sampled",
    "scaled_ns",
    "shapes_of",
    "sped_up",
    "without",
    "without_waiting_ns",
    "without_waits",
]


@dataclass(frozen=True)
class Claim:
    """What a rule says of one rank: a finding before it is ranked against the others.

    The engine turns claims into findings: it takes time away from a claim that one nearer the source explains, divides
    by the steps, and sets severity and share.
    """

    summary: str
    recoverable_ns: int
    """Over all counted steps together."""
    claims: Intervals
    """The stretches of time that the claim wants back, within the counted steps."""
    confidence: Confidence = Confidence.MEASURED
    evidence: Sequence[Evidence] = ()
    where: Sequence[Place] = ()
    fixers: Sequence[str] | None = None
    """None: the rule's own."""
    confirm: str | None = None
    unseen_ns: int = 0
    """Besides, per step: what a live run loses in steps that are not among the counted ones, averaged over all."""
    cut: Cut | None = field(default=None, repr=False)
    """What of the run changes without the cause, for claims that come after this one; None: `claims` are gone."""


Answer = Claim | CannotTell
Check = Callable[[Measures], Iterable[Answer]]


@dataclass(frozen=True)
class Rule:
    """One bottleneck."""

    name: str
    """The ailment in kebab case; reads after "this run is" or "this run has"."""
    check: Check
    fixers: tuple[str, ...] = ()
    fires: tuple[Trace, ...] = field(default=(), repr=False)
    silent: tuple[Trace, ...] = field(default=(), repr=False)
    nearness: int = 50
    """How near the ailment is to its source: of two claims to the same time, the one with the smaller number wins."""
    doc: str = ""
    """Filled by the loader from the module's docstring."""
