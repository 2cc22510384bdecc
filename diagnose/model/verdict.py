"""The outcome of a fix that was tried: what it promised, what was measured, and what was decided."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.model.check import GateCheck
from diagnose.model.finding import Confidence, Number, Place, Scalar


class Gate(enum.StrEnum):
    """The promise of a fix about the numbers of the training run."""

    BITWISE = "bitwise"
    """Loss, gradients and parameters are equal bit for bit under deterministic settings."""
    ROUNDING = "rounding"
    """The same mathematics in another order or number format; judged against a float64 reference."""
    TRAINING = "training"
    """Changes the training itself; tried only when the user allows it."""

    @property
    def boldness(self) -> int:
        """The rank of the gate by risk: 0 for bitwise, the most exact promise."""
        return list(Gate).index(self)


class Decision(enum.StrEnum):
    """The outcome of a trial."""

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
    """The result of the numerics gate."""

    gate: Gate
    passed: bool | None
    """None: it could not be run."""
    detail: str
    """One sentence with the figures."""
    checks: tuple[GateCheck, ...] = ()
    """The comparisons beside the numbers of the first steps."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """The measure that the fix claims to move, before and after, in one unit."""

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
    """The saving that the finding gave just before the trial, with all fixes in place that were kept by then."""
    resolution: float | None = None
    """Half-width of the A/A control: the smallest change that this machine can tell from none."""
    pairs: int = 0
    generations: int = 0
    gate: GateResult | None = None
    mechanism: Mechanism | None = None
    peak_memory_bytes: tuple[int, int] | None = None
    """The peak memory before and after."""
    diff: str = ""
    where: tuple[Place, ...] = ()
    prediction: Confidence | None = None
    """The basis of `predicted_ns`: a bound says that it is no more, not that it is as much."""
    startup_ns: tuple[int, int] | None = None
    """The time before and after from the start of the first process to the end of its warm-up, with all that is
    compiled or tuned in it."""
    pays_after_steps: int | None = None
    """The number of steps after which the fix has earned back what it adds to the start; None where it saves
    nothing."""
