"""The nouns of the project: frozen, plain, and readable as JSON. This module imports nothing of ours.

`analyze --json` prints one `Diagnosis`; the journal of a run is made of the others. Times are integer nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

Number = int | float
Scalar = int | float | str | bool | None

SCHEMA = 1
"""Version of the JSON that `analyze --json` prints. Fields are added under the same number, never renamed."""


class Severity(enum.StrEnum):
    """How much of the step a finding could give back. Never taken from absolute milliseconds."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NOTE = "note"

    @classmethod
    def of_share(cls, share: float) -> Severity:
        """The severity of a finding that could give back `share` (0 to 1) of the step."""
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
    """What a finding's recoverable time rests on."""

    MEASURED = "measured"
    """Proven by the trace or by an experiment."""
    BOUND = "bound"
    """An upper limit: the step cannot give back more than this."""
    HINT = "hint"
    """A known pattern whose cost is unknown here."""


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


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that proves a finding."""

    measure: str
    value: Number
    unit: str
    """`ns`, `bytes`, `share`, `count`, or a unit that is printed as it stands."""
    rows: tuple[int, ...] = ()
    """Rows of the table that the measure was taken from (device work unless the measure says otherwise)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One bottleneck: what it is, what it costs per step, what proves it, and where it is."""

    rule: str
    severity: Severity
    rank: int | None
    recoverable_ns: int
    """Time per step that would be saved if the cause were gone; no nanosecond is claimed by two findings."""
    share: float
    """`recoverable_ns` over the mean step."""
    confidence: Confidence
    summary: str
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Place, ...] = ()
    fixers: tuple[str, ...] = ()
    confirm: str | None = None
    """What would confirm it, where the confidence is less than measured."""
    ends_run: bool = False
    """Whether the run ends of it sooner or later, or did, whatever it costs per step."""
    short_of_memory: bool = False
    """Whether memory is what is short: a fix that frees a good part of it is worth having though it saves no time."""

    @property
    def asks_for_time(self) -> bool:
        """Whether a fix has to make the step shorter to be worth having."""
        return not (self.ends_run or self.short_of_memory)


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A rule that could not decide, and what would have to be recorded so that it could."""

    rule: str
    needs: str


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where the time of one or more steps went. The classes are disjoint and sum to the span exactly."""

    compute: int = 0
    exposed_comm: int = 0
    """Collectives not covered by compute."""
    exposed_copy: int = 0
    """Copies not covered by compute or collectives."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """The rest, by cause: see `diagnose.measure.idle`."""

    @property
    def idle_ns(self) -> int:
        """All idle time, whatever its cause."""
        return sum(self.idle.values())

    @property
    def total_ns(self) -> int:
        """The span that the classes sum to."""
        return self.compute + self.exposed_comm + self.exposed_copy + self.idle_ns


@dataclass(frozen=True, slots=True)
class StepWork:
    """The arithmetic that the model needs of a step, and how near the device's ceiling that came (MFU)."""

    flops_per_step: int
    """Floating-point operations of products, convolutions and attention, without what is computed a second time."""
    flops_per_s: float
    """The same over the mean step."""
    ceiling_flops_per_s: float
    """What the device does at most in the number formats used, weighed by how much each was."""
    utilisation: float
    """Model FLOP utilisation: the one over the other."""
    modelled: float
    """The share of the device time of products, convolutions and attention that is known; below 1, the rest is a lower
    bound."""
    ceiling_source: str
    """`data sheet of …`, or `measured`."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that were counted."""

    count: int
    median_ns: int | None
    """The low median, so that it is the length of a real step; None without steps."""
    mean_ns: int | None = None
    total_ns: int = 0
    found_by: str = "none"
    """`optimizer`, `profiler marks`, `nvtx`, `period`, `whole trace`, or `none`."""


@dataclass(frozen=True, slots=True)
class RankWait:
    """What one rank waits for another one in collectives, per counted step."""

    rank: int | None
    """The other one."""
    time_ns: int


@dataclass(frozen=True, slots=True)
class RankAccounting:
    """One rank of a job."""

    rank: int | None
    source: str
    steps: Steps
    accounting: Accounting
    """All counted steps together: sums to `steps.total_ns`."""
    waits: tuple[RankWait, ...] = ()
    """For other ranks, computing nothing; the longest first."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Pieces of a device's memory that serve as the same, and that one line asked for in one phase."""

    category: str
    held_bytes: int
    pieces: int
    place: Place | None
    """None where no line is known: what autograd's own threads ask for has none."""
    taken: str | None
    """The phase that asked: `forward`, `backward`, `optimizer`, or `before` the recording; None where none is known."""
    freed: str | None
    """The phase that gave it back, or `never`; None where none is known."""
    by: str | None = None
    """The modules and the operator that asked, where operators are recorded and the allocator's stacks are not."""


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Bytes by category at moments in order; of each stretch of time the moment at which most was held."""

    time_ns: tuple[int, ...] | None
    """None for a history without times: then events are as far apart as each other."""
    categories: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """What a device's memory holds when most of it is in use, or when an allocation finds no room."""

    device: int
    at_ns: int | None
    held_bytes: int
    """What programs asked for and did not give back: `categories` sum to it."""
    categories: Mapping[str, int]
    """By `diagnose.measure.piece_roles.CATEGORIES`; those that hold nothing are left out."""
    parts: tuple[MemoryPart, ...] = ()
    """By line, the most first."""
    reserved_bytes: int | None = None
    """What the allocator has of the device."""
    fragments_bytes: int | None = None
    """Of that, what is free in segments of which a part is held, so that it cannot be given back."""
    capacity_bytes: int | None = None
    """Of the device."""
    wanted_bytes: int | None = None
    """What an allocation asked for that found no room at this moment; None where there was none."""
    timeline: MemoryTimeline | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `diagnose analyze --json` prints."""

    schema: int
    source: tuple[str, ...]
    ranks: int
    device: str | None
    """The device's name; None where the trace names none."""
    steps: Steps
    accounting: Accounting
    """The step of median length on the slowest rank: sums to `steps.median_ns`."""
    findings: tuple[Finding, ...] = ()
    """Sorted by recoverable time; the first is what to fix first."""
    cannot_tell: tuple[CannotTell, ...] = ()
    warnings: tuple[str, ...] = ()
    per_rank: tuple[RankAccounting, ...] = ()
    has_device: bool | None = None
    """Whether any rank recorded work of a device, named or not; None where nobody looked."""
    work: StepWork | None = None
    """Of the slowest rank; None where operators have no shapes or the device's ceilings are unknown."""
    memory: MemoryPeak | None = None
    """Of the rank whose device is fullest; None where no allocator's history was recorded."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place where the program built or called something that rules and fixers care about."""

    kind: str
    """`DataLoader`, `optimizer`, `DistributedDataParallel`, `GradScaler`, `autocast`, `compile`, …"""
    file: str
    line: int
    function: str | None = None
    arguments: Mapping[str, Scalar] = field(default_factory=dict)
    """Arguments as they took effect (defaults filled in), and attributes such as the class's `name`."""
    owned: bool = True
    """Whether the line lies in a file of the user's (not in an installed package)."""


@dataclass(frozen=True, slots=True)
class SyncSite:
    """A line at which the host was seen to wait for the device."""

    file: str
    line: int
    function: str | None
    per_step: float
    """Waits per step."""


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """How long one kind of collective takes over its size, as `diagnose calibrate` measured it."""

    kind: str
    """`all_reduce`, `reduce_scatter`, `all_gather`, `all_to_all`, `send_recv`."""
    ranks: int
    nodes: int
    """Hosts that the ranks are on."""
    size_bytes: tuple[int, ...]
    """Whole messages, rising: all that is gathered, all that is scattered."""
    time_ns: tuple[int, ...]
    """Of the slowest rank; the median of several measurements."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the process and the machine. None is unknown, never "no"."""

    torch_version: str | None = None
    python_version: str | None = None
    device_name: str | None = None
    device_capability: tuple[int, int] | None = None
    device_memory_bytes: int | None = None
    matmul_precision: str | None = None
    """`torch.get_float32_matmul_precision()`: highest, high or medium."""
    cudnn_tf32: bool | None = None
    cudnn_benchmark: bool | None = None
    """Whether cuDNN (or MIOpen) tries its algorithms for each new shape of a convolution and keeps the fastest."""
    cudnn_deterministic: bool | None = None
    autocast_dtype: str | None = None
    """The dtype under which autocast was seen active in a step; `none` when it was seen inactive."""
    cpu_count: int | None = None
    """Cores that this process may use."""
    torch_threads: int | None = None
    deterministic: bool | None = None
    step_ns_watched: int | None = None
    """Median step before the profiler window: what the step costs when nobody traces it."""
    steady: str | None = None
    """How it was decided that the steps were steady."""
    peak_memory_bytes: int | None = None
    ceilings: Mapping[str, float] | None = None
    """What this machine's device was measured to do at most: FLOP/s by number format (`bf16`), bytes/s as `memory`."""
    curves: tuple[CollectiveCurve, ...] | None = None
    """What collectives take on this machine under the same library and settings, where they were calibrated."""
    network_settings: Mapping[str, str] | None = None
    """The environment that decides how ranks talk: `NCCL_P2P_DISABLE` and the like, as far as it is set."""


class Gate(enum.StrEnum):
    """What a fix promises about the numbers of the training run."""

    BITWISE = "bitwise"
    """Loss, gradients and parameters are equal bit for bit under deterministic settings."""
    ROUNDING = "rounding"
    """The same mathematics in another order or number format; judged against a float64 reference."""
    TRAINING = "training"
    """Changes the training itself; tried only when the user allows it."""


class Decision(enum.StrEnum):
    """How a trial ended."""

    KEPT = "kept"
    NO_CHANGE = "no change"
    """Measured, and the interval does not exceed what the machine can resolve."""
    SLOWER = "slower"
    CHANGES_NUMBERS = "changes numbers"
    UNVERIFIED = "unverified"
    """Faster, but the numerics gate could not be run."""
    UNEXPLAINED = "unexplained"
    """Faster, but what the fix claims to move did not move."""
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    """The patched program crashed, hung, or never reached a steady state."""
    NOT_TRIED = "not tried"
    """The budget ran out, or the user did not allow its class."""
    ADVICE = "advice"
    """There is no line of the user's to edit; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate of a relative change of step time (+0.10: 10 % less time per step) with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the numerics gate saw."""

    gate: Gate
    passed: bool | None
    """None: it could not be run."""
    detail: str
    """One sentence with the figures."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What the fix claims to move, before and after, in one unit."""

    measure: str
    before: Number | None
    after: Number | None
    unit: str
    moved: bool | None
    """None: it could not be measured."""


TOGETHER = "all together"
"""Stands where a verdict names its fixer: several fixes in one trial."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fix, tried on a copy of the program."""

    fixer: str
    decision: Decision
    summary: str
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    """The knobs that were chosen (`num_workers`: 2); empty for fixes without any."""
    saving: Interval | None = None
    """Share of the step saved; None when nothing was measured."""
    saving_ns: int | None = None
    """`saving.estimate` of the original's step, in nanoseconds per step."""
    predicted_ns: int | None = None
    """What the finding said just before the trial, with all fixes in place that were kept by then."""
    resolution: float | None = None
    """Half-width of the A/A control: the smallest change that this machine can tell from none."""
    pairs: int = 0
    generations: int = 0
    gate: GateResult | None = None
    mechanism: Mechanism | None = None
    peak_memory_bytes: tuple[int, int] | None = None
    """Before and after."""
    diff: str = ""
    where: tuple[Place, ...] = ()
    prediction: Confidence | None = None
    """What `predicted_ns` rested on: a bound says that it is no more, not that it is as much."""
    startup_ns: tuple[int, int] | None = None
    """Before and after: from the start of the first process to the end of its warm-up, with all that is compiled or
    tuned in it."""
    pays_after_steps: int | None = None
    """After so many steps the fix has earned back what it adds to the start; None where it saves nothing."""
