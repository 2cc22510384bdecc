"""The rungs from the step as it is to the shortest that this model could have: what would be saved, in which order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PracticalCeiling:
    """The shortest step that this model could have on this device at this batch (`docs/ladder.md`)."""

    step_ns: int
    """The three that follow together."""
    matmul_ns: int
    """Products, convolutions and attention at the ceilings of the fastest 16-bit format."""
    memory_ns: int
    """One pass over memory between each two of them."""
    launch_ns: int
    """The time of kernels that are too small to take longer than a launch."""
    utilisation: float
    """The model's arithmetic over that step, over `StepWork.ceiling_flops_per_s`."""
    matmul_now_ns: int
    """The time of products, convolutions and attention in a step as it is."""
    other_now_ns: int
    """The time of all other kernels in it, without collectives."""
    same_training_ns: int
    """The ceiling of a program that trains as this one does: in its own number formats, its optimizer and loss as they
    are."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One finding, treated after those of the rungs before it."""

    rule: str
    rank: int | None
    fixers: Mapping[str, bool]
    """The fixers that treat it, each with whether it changes the training; empty where no fixer does."""
    likely_ns: int
    """The step that is predicted with this rung and all before it."""
    step_ns: tuple[int, int]
    """The predicted step as an interval: nine of ten measured savings were as far from their predictions, or nearer."""
    utilisation: float | None
    """Model FLOP utilisation of `likely_ns`; None where the model's arithmetic is not known."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The ladder from a mean step to the practical ceiling."""

    step_ns: int
    """The step as it is now: `Diagnosis.step_ns`."""
    utilisation: float | None
    """The utilisation of the step as it is now; see `Rung.utilisation`."""
    rungs: tuple[Rung, ...] = ()
    ceiling: PracticalCeiling | None = None
    apart: Mapping[str, int] = field(default_factory=dict)
    """The parts of today's step above the ceiling, ns by `products`, `other kernels` and `no compute`: their sum is all
    of it. Empty without a ceiling."""
    loader_ns: int | None = None
    """The shortest step that the loader's workers keep up with as they are; None where nobody watched them."""
    loader_unknown: bool = False
    """Whether the program has a loader that no rung treats, and nobody knows how short a step it keeps up with."""
