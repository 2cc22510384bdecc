"""A probe's measurement: the step with and without one of its parts, and what that says about the findings."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from diagnose.model.finding import Scalar


class Bearing(enum.StrEnum):
    """A probe's answer about a finding's predicted saving."""

    CONFIRMS = "confirms"
    """The two intervals overlap."""
    CONTRADICTS = "contradicts"
    """Trace and probe disagree: one of them is wrong about this program."""
    OPEN = "leaves open"
    """The probe takes away more than the finding's cause, or not all of it, and does not refute the finding."""


@dataclass(frozen=True, slots=True)
class ProbedFinding:
    """One finding beside the probe."""

    rule: str
    rank: int | None
    bearing: Bearing
    predicted_ns: tuple[int, int]
    """The interval, per step, of what removing the finding's cause is predicted to save: it holds nine times of ten."""
    summary: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One probe with one of its settings, tried on a copy of the program."""

    probe: str
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    refused: str = ""
    """Why there is no answer: the probe would mislead, or the program did not run with it."""
    step_ns: int | None = None
    """The program's own step beside the probe's."""
    probed_ns: int | None = None
    """The step with the probe."""
    saved_ns: tuple[int, int] | None = None
    """The 95 % interval of the difference per step; negative where the step takes longer with the probe."""
    pairs: int = 0
    generations: int = 0
    left: tuple[str, ...] = ()
    """The parts that the probe had to leave as they are: where there are any, its saving is a lower bound."""
    peak_memory_bytes: tuple[int, int] | None = None
    """The peak memory without and with the probe."""
    delay_ns: int | None = None
    """The delay that the probe adds to a part of the step, where it adds one."""
    findings: tuple[ProbedFinding, ...] = ()
