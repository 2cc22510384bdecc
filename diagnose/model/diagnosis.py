"""The diagnosis of a job: where its steps' time goes and what slows them, as `diagnose analyze --json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.model.finding import CannotTell, Finding, Place
from diagnose.model.ladder import Ladder
from diagnose.model.memory import MemoryPeak

SCHEMA = 1
"""Version of the JSON that `analyze --json` prints. Fields are added under the same number, never renamed."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """The time of one or more steps by class. The classes are disjoint and sum to the span exactly."""

    compute: int = 0
    exposed_comm: int = 0
    """Collectives not covered by compute."""
    exposed_copy: int = 0
    """Copies not covered by compute or collectives."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """The rest, by cause: see `diagnose.measure.steps.idle`."""
    compute_by: Mapping[str, int] = field(default_factory=dict)
    """The bounds of the compute, nanoseconds by `diagnose.measure.roofline.kernel_bounds.Bound` in small letters.

    They sum to `compute`. Empty without a device.
    """

    @property
    def idle_ns(self) -> int:
        """All idle time, whatever its cause."""
        return sum(self.idle.values())

    @property
    def total_ns(self) -> int:
        """The span that the classes sum to."""
        return self.compute + self.exposed_comm + self.exposed_copy + self.idle_ns


@dataclass(frozen=True, slots=True)
class ComputePart:
    """A part of the device's compute in all counted steps together; the parts of a rank sum to it exactly."""

    bound: str
    """`matmul`, `memory`, `latency`, `communication` or `unknown`."""
    format: str | None
    """The number format of products; None for all else, and where nobody knows."""
    backward: bool
    """Whether it is of a backward pass."""
    module: str | None
    """The modules around it, the outermost first, with dots between; None where none are recorded."""
    place: Place | None
    """The line of the program's own that it comes from; in a backward pass that of the forward operator."""
    time_ns: int
    known_ns: int
    """The part of that time in kernels whose operations and bytes are known."""
    least_ns: int
    """The time that those would take at the device's ceilings."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The arithmetic that the model needs of a step, and how near the device's ceiling that came (MFU).

    The ceiling is that of the fastest format that training uses, whatever format this run uses: one that multiplies in
    FP32 is not near any ceiling because FP32 is slow.
    """

    flops_per_step: int
    """Floating-point operations of products, convolutions and attention, without what is computed a second time."""
    flops_per_s: float
    """`flops_per_step` over the mean step."""
    ceiling_flops_per_s: float
    """The most that the device does in `ceiling_format`, dense."""
    utilisation: float
    """Model FLOP utilisation: the one over the other."""
    modelled: float
    """The share of the device time of products, convolutions and attention that is known; below 1, the rest is a lower
    bound."""
    ceiling_source: str
    """`data sheet of …`, or `measured`."""
    ceiling_format: str = ""
    """The fastest of the device's 16-bit formats; where it has none, the fastest format it has."""
    in_use: Mapping[str, float] = field(default_factory=dict)
    """The share (0 to 1) of the operations that were done in each number format, the most first."""
    in_use_flops_per_s: float | None = None
    """The most that the device does in the formats in use, weighed by how much each is."""


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
    """The time that one rank waits for another one in collectives, per counted step."""

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
    """Its waits for other ranks in which it computes nothing; the longest first."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The object that `diagnose analyze --json` prints."""

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
    """The slowest rank's work; None where operators have no shapes or the device's ceilings are unknown."""
    memory: MemoryPeak | None = None
    """The memory of the rank whose device is fullest; None where no allocator's history was recorded."""
    step_ns: int | None = None
    """The step that findings are shares of: the mean step of the slowest rank, without the profiler where its cost
    is known, and of the whole run where a live one was seen to lose time in steps that were not recorded."""
    ladder: Ladder | None = None
    """The rungs from the step as it is to the shortest that this model could have; None without steps."""
    critical_path: Mapping[str, int] | None = None
    """The causes that the ends of the slowest rank's steps waited for, ns of a mean step by class, the largest first
    (`diagnose.measure.replay.critical_path`); None without a device, or where the replay does not follow the
    recording.
    """
    compute: tuple[ComputePart, ...] = ()
    """The parts of the slowest rank's compute, in all counted steps together, the longest first; empty without
    a device."""
    unclaimed: Accounting | None = None
    """The time that no finding claims, of all counted steps of the slowest rank together; None without steps."""

    @property
    def average_step_ns(self) -> int:
        """How long steps take on average, as far as is known, to tell how long a run of many will; 0 without steps.

        Where one step of many is far longer than the others, the median says nothing of that.
        """
        return self.step_ns or self.steps.median_ns or 0
