"""The events of a run: one class per kind, plain and readable as a line of JSON."""

from __future__ import annotations

import time

import msgspec

from diagnose.model import Diagnosis, Facts, GateResult, Place, ProbeResult, Scalar, StepProfile, Verdict


class Event(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all events; `at_ns` is nanoseconds since the epoch."""

    at_ns: int = msgspec.field(default_factory=time.time_ns)


class RunStarted(Event, frozen=True, tag=True, kw_only=True):
    """A command began on a program or on recordings."""

    command: str
    """`run`, `fix` or `analyze`."""
    program: str
    """The words that the user typed after the options."""
    cwd: str
    version: str
    pid: int = 0
    dry: bool = False
    """Whether `fix` only says what it would try, and tries nothing."""


class PhaseChanged(Event, frozen=True, tag=True, kw_only=True):
    """The run entered a phase; it is in the user's words: `waiting for the first step`, `tracing 4 steps`, …"""

    phase: str
    detail: str = ""


class StepsSeen(Event, frozen=True, tag=True, kw_only=True):
    """Steps that ended since the event before, of one rank."""

    rank: int
    ends_ns: list[int]
    input_ns: list[int]
    """Per step: time inside the loader's `__next__`."""
    skipped: list[int] = []
    """Per step: those before it of which only the number is known; empty: none."""


class CountersRead(Event, frozen=True, tag=True, kw_only=True):
    """The newest value of each counter of one rank: `gpu.utilization`, `gpu.sm_activity`, `host.cpu`, …"""

    rank: int
    values: dict[str, float]


class ProgramOutput(Event, frozen=True, tag=True, kw_only=True):
    """Text that the program printed while a screen owned the terminal."""

    text: str


class TraceWritten(Event, frozen=True, tag=True, kw_only=True):
    """A profiler window was closed and its trace lies on disk."""

    rank: int
    path: str
    steps: int


class FactsLearned(Event, frozen=True, tag=True, kw_only=True):
    """The facts of the process and its device became known."""

    rank: int
    facts: Facts


class DiagnosisMade(Event, frozen=True, tag=True, kw_only=True):
    """Accounting and ranked findings; a later one replaces an earlier one."""

    diagnosis: Diagnosis


class StepsProfiled(Event, frozen=True, tag=True, kw_only=True):
    """Kernels, operators and a timeline of the slowest rank's counted steps; a later one replaces an earlier one."""

    profile: StepProfile


class ControlMeasured(Event, frozen=True, tag=True, kw_only=True):
    """The A/A control: the original against itself with the schedule of the trials."""

    resolution: float
    """Half-width of the 95 % interval, as a share of the step."""
    pairs: int
    generations: int
    step_ns: int


class TrialStarted(Event, frozen=True, tag=True, kw_only=True):
    """A fix is being tried."""

    fixer: str
    setting: dict[str, Scalar]
    predicted_ns: int | None
    """The predicted saving per step; None for the check of a fix that is kept already: nothing is predicted of that."""
    summary: str
    diff: str
    where: list[Place] = []


class TrialBlock(Event, frozen=True, tag=True, kw_only=True):
    """One pair of blocks was measured."""

    fixer: str
    pair: int
    """The pair's number, from 0. At another 0 the trial has begun anew, with longer blocks: earlier pairs count no
    more."""
    original_ns: int
    patched_ns: int
    """Mean step of the block."""
    saving: float | None = None
    low: float | None = None
    high: float | None = None
    """The paired estimate so far, with its interval, once there are enough pairs."""


class VerdictReached(Event, frozen=True, tag=True, kw_only=True):
    """A fix was judged; judged again, as when the final stack is checked, the later verdict is the valid one."""

    verdict: Verdict


class PatchAccepted(Event, frozen=True, tag=True, kw_only=True):
    """The diff of all kept fixes together, as `diagnose apply` will write it."""

    diff: str
    fixers: list[str]


class FinalMeasured(Event, frozen=True, tag=True, kw_only=True):
    """The patched program alone against the original alone, without `diagnose` inside: the number reported."""

    original_ns: int
    patched_ns: int
    runs: int
    how: str
    gate: GateResult | None = None
    """The answer of the numerics gate on all kept fixes together, against the original."""
    interaction: float | None = None
    """Logarithm of patched over original step, less the sum of the same over the kept fixes' own trials: above zero
    where they save less together than they were measured to one by one. None for a single fix."""


class Probed(Event, frozen=True, tag=True, kw_only=True):
    """A probe has measured what a part of the step costs, or refused to."""

    result: ProbeResult


class Noticed(Event, frozen=True, tag=True, kw_only=True):
    """Something changed in a run that `diagnose watch` follows."""

    kind: str
    """`slower`, `faster`, `memory`, `hang`, `goes on`, or `traced` for what the trace of a change says."""
    since_ns: int
    since_step: int
    rank: int | None
    """The rank that it is about; None where it is the job's."""
    message: str
    causes: list[str] = []
    """The part that changed with the time of a step: `data`, `code`, `clocks`, `neighbours`, or `unknown`."""
    stacks: dict[str, list[str]] = {}
    """Where the training thread of each rank is in a hang, innermost frame first."""


class Warned(Event, frozen=True, tag=True, kw_only=True):
    """Something the user should know that is no finding."""

    message: str


class RunEnded(Event, frozen=True, tag=True, kw_only=True):
    """The command is done; `returncode` is the program's own (None where none was run)."""

    returncode: int | None
    exit_code: int
    message: str = ""


AnyEvent = (
    RunStarted
    | PhaseChanged
    | StepsSeen
    | CountersRead
    | ProgramOutput
    | TraceWritten
    | FactsLearned
    | DiagnosisMade
    | StepsProfiled
    | ControlMeasured
    | TrialStarted
    | TrialBlock
    | VerdictReached
    | PatchAccepted
    | FinalMeasured
    | Probed
    | Noticed
    | Warned
    | RunEnded
)
"""Any of them; the name of the kind goes along as `type`."""
