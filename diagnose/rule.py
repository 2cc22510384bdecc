"""All that a file in `rules/` needs to import.

A rule is a pure function from the measures of one rank to claims about its time. It names an ailment, never a cure.
The file's docstring is its documentation, under the headings *What it finds*, *Why it costs*, *What proves it*,
*What fixes it*; `diagnose explain NAME` prints it. The file ends in `RULE = Rule(...)` with drawn examples: at least
one that fires, and at least one that looks alike and must stay silent. Shared tests run them all.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from diagnose.measure import Measures
from diagnose.measure.comm.bucket_plan import planned_buckets
from diagnose.measure.comm.collectives import SMALL_BYTES, Phase
from diagnose.measure.comm.communication_waste import BUCKET_BYTES, Waste
from diagnose.measure.comm.ddp_unused_parameters import UnusedParameterSearch, used_map
from diagnose.measure.comm.faster_collectives import shortened
from diagnose.measure.comm.fsdp_resharding import worth_keeping
from diagnose.measure.comm.overheads import held_share
from diagnose.measure.comm.redundant_collectives import without_collectives
from diagnose.measure.job.ranks import Job, JobRow, Lateness, listed
from diagnose.measure.kernels.eager_attention import WrittenAttention, product_flop, scores_shape
from diagnose.measure.kernels.launch_order import LaunchOrder
from diagnose.measure.kernels.matmuls import Matmuls, best_rate
from diagnose.measure.kernels.misaligned_matmuls import MisalignedMatmuls
from diagnose.measure.lines.collective_lines import issuing_of, issuing_ops, places_by_cost
from diagnose.measure.lines.op_lines import places_of_ops
from diagnose.measure.memory.leaks import backward_begins, kept_by, places_by_stack
from diagnose.measure.replay.replay import Cut
from diagnose.measure.replay.savings import (
    gained_ns,
    recoverable_ns,
    scaled_ns,
    sped_up,
    without,
    without_host_ns,
    without_waiting_ns,
    without_waits,
)
from diagnose.measure.roofline.kernel_bounds import Bound
from diagnose.measure.roofline.op_costs import FORMATS
from diagnose.measure.roofline.saved_bytes import argument_bytes
from diagnose.measure.steps.idle import LATENCY_NS, REFILL_NS
from diagnose.measure.steps.outlier_steps import (
    AFTER_WINDOW,
    Stalls,
    StepTimes,
    exceptional_steps,
    median_low,
    stalls_of,
    step_times,
)
from diagnose.measure.views.growth import growth, growth_between
from diagnose.measure.views.host_activity import ALLOCATIONS
from diagnose.measure.views.kernel_classes import KernelClass, matmul_format
from diagnose.measure.views.names import named
from diagnose.measure.views.noise import median_surely
from diagnose.measure.views.shapes import dtypes_of, shapes_of
from diagnose.measure.views.stacks import sampled
from diagnose.model import (
    Accounting,
    CannotTell,
    CollectiveCurve,
    Confidence,
    Evidence,
    Facts,
    Finding,
    MemoryPeak,
    Place,
    Scalar,
    Site,
    SyncSite,
)
from diagnose.trace import Collective, StackFrame, Trace
from diagnose.trace.drawn import drawn
from diagnose.trace.intervals import Intervals
from diagnose.trace.schema import (
    Bool,
    CopyDirection,
    Counters,
    Float64,
    Int64,
    Memory,
    MemoryAction,
    RangeKind,
    StepLog,
    WorkKind,
)
from diagnose.units import format_bytes, format_count, format_ns, format_share

__all__ = [
    "AFTER_WINDOW",
    "ALLOCATIONS",
    "BUCKET_BYTES",
    "FORMATS",
    "LATENCY_NS",
    "REFILL_NS",
    "SMALL_BYTES",
    "Accounting",
    "Bool",
    "Bound",
    "CannotTell",
    "Claim",
    "Collective",
    "CollectiveCurve",
    "Confidence",
    "CopyDirection",
    "Counters",
    "Cut",
    "Evidence",
    "Facts",
    "Finding",
    "Float64",
    "Int64",
    "Intervals",
    "Job",
    "JobClaim",
    "JobRow",
    "KernelClass",
    "Lateness",
    "LaunchOrder",
    "Matmuls",
    "Measures",
    "Memory",
    "MemoryAction",
    "MemoryPeak",
    "MisalignedMatmuls",
    "Phase",
    "Place",
    "RangeKind",
    "Rule",
    "Scalar",
    "Site",
    "StackFrame",
    "Stalls",
    "StepLog",
    "StepTimes",
    "Symptom",
    "SyncSite",
    "Trace",
    "UnusedParameterSearch",
    "Waste",
    "WorkKind",
    "WrittenAttention",
    "argument_bytes",
    "backward_begins",
    "best_rate",
    "drawn",
    "dtypes_of",
    "exceptional_steps",
    "format_bytes",
    "format_count",
    "format_ns",
    "format_share",
    "gained_ns",
    "growth",
    "growth_between",
    "held_share",
    "issuing_of",
    "issuing_ops",
    "kept_by",
    "listed",
    "matmul_format",
    "median_low",
    "median_surely",
    "named",
    "nothing_alone",
    "places_by_cost",
    "places_by_stack",
    "places_of_ops",
    "planned_buckets",
    "product_flop",
    "recoverable_ns",
    "sampled",
    "scaled_ns",
    "scores_shape",
    "shapes_of",
    "shortened",
    "sped_up",
    "stalls_of",
    "step_times",
    "used_map",
    "without",
    "without_collectives",
    "without_host_ns",
    "without_waiting_ns",
    "without_waits",
    "worth_keeping",
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
    ends_run: bool = False
    """Whether the run ends of it, or did: then it comes before what only costs little."""
    ended_run: bool = False
    """Whether the run did end of it: nothing is more severe."""
    short_of_memory: bool = False
    """Whether memory is what is short: then a fix is kept for what it frees, too."""
    sure: float = 1.0
    """The part of it (0 to 1) that is sure, which severity goes by."""
    cut: Cut | None = field(default=None, repr=False)
    """What of the run changes without the cause, for claims that come after this one; None: `claims` are gone."""
    once: Sequence[str] = ()
    """Rules whose ailments hide this one: it costs nothing while they stand, and is no finding, but is foreseen where
    they are treated (`diagnose.what_if`)."""


@dataclass(frozen=True)
class JobClaim:
    """What a rule says of the ranks of a job together: a finding before what the ranks' own findings claim is settled.

    The time is that of the ranks that wait, and what `rank` does in it is the reason: its own findings of the same time
    become part of this one.
    """

    summary: str
    rank: int | None
    """The rank at fault."""
    member: int
    """Its row of the job's table."""
    recoverable_ns: int
    """Per step."""
    share: float
    """Of the step."""
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
    """What a user sees of an ailment, in the order in which they are listed."""

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
    """Under which of what a user sees `diagnose explain` lists it."""
    doc: str = ""
    """Filled by the loader from the module's docstring."""
