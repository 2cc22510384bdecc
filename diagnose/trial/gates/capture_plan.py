"""The captures that a gate needs: of which programs, under which recipes. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.model import Gate
from diagnose.program import Program
from diagnose.trial.gates.trajectory import LEAST_SEEDS, LEAST_STEPS
from diagnose.units import NS_PER_S

BITWISE_STEPS = 5  # compared bit for bit; chosen, not measured
ROUNDING_STEPS = 2  # the second shows what the first update did; chosen, not measured
SEEDS = LEAST_SEEDS
MOST_STEPS = 200  # of a trajectory, however short a step is; chosen, not measured
TRAJECTORY_NS = 15 * NS_PER_S
"""The time for the steps of one program under all seeds, one after the other, where more than LEAST_STEPS fit into
it."""


@dataclass(frozen=True)
class CaptureRequest:
    """A capture of a program under a recipe; `name` tells the recipes apart."""

    program: Program
    name: str
    recipe: Mapping[str, Any]
    spare: bool = False
    """Whether it may turn out not to be needed."""

    @property
    def key(self) -> tuple[Path, str]:
        """No two captures of a session share it."""
        return (self.program.root, self.name)

    @property
    def of_luck(self) -> bool:
        """Whether the capture is one trajectory of several, under the program's own settings."""
        return self.recipe.get("mode") == "trajectory"

    @property
    def rests(self) -> bool:
        """Whether a capture that is begun early pauses first: it takes long, or may not be needed."""
        return self.of_luck or self.spare

    @property
    def exact(self) -> bool:
        """Whether the capture is a reference, operator by operator in a wide format."""
        return "precision" in self.recipe

    @property
    def in_float64(self) -> bool:
        """Whether the capture is a reference in float64."""
        return self.recipe.get("precision") == "float64"


def bits(program: Program) -> CaptureRequest:
    """All tensors of the first steps as hashes."""
    return CaptureRequest(program, "bits", {"steps": BITWISE_STEPS, "values": False})


def bits_again(program: Program) -> CaptureRequest:
    """All tensors of the first steps as hashes, by another process: whether a program gives the same bits twice."""
    return replace(bits(program), name="bits-again", spare=True)


def rounding(
    original: Program, patched: Program, rounds_to: str | None, precision: str = "float64"
) -> list[CaptureRequest]:
    """Values of both, a reference of the original, and where a format is declared one that rounds to it."""
    recipe = {"steps": ROUNDING_STEPS, "values": True}
    reference = exact(original, precision)
    wanted = [CaptureRequest(original, "values", recipe), CaptureRequest(patched, "values", recipe), reference]
    if rounds_to is not None:
        wanted.append(
            CaptureRequest(original, f"{precision}-{rounds_to}", {**reference.recipe, "rounds_to": rounds_to})
        )
    return wanted


def exact(program: Program, precision: str = "float64") -> CaptureRequest:
    """Values of the program's own reference in a precision."""
    return CaptureRequest(program, precision, {"steps": ROUNDING_STEPS, "values": True, "precision": precision})


def luck(programs: Sequence[Program], seeds: int, steps: int) -> list[CaptureRequest]:
    """Trajectories of each program under each seed."""
    return [
        CaptureRequest(program, f"seed-{seed}", {"mode": "trajectory", "steps": steps, "seed": seed})
        for program in programs
        for seed in range(seeds)
    ]


def trajectory_steps(step_ns: int) -> int:
    """Steps of each trajectory, where a step takes so long; not above zero is unknown."""
    return min(MOST_STEPS, max(LEAST_STEPS, TRAJECTORY_NS // (SEEDS * step_ns))) if step_ns > 0 else LEAST_STEPS


@dataclass(frozen=True)
class Part:
    """A program with all but what changes the training, and what it promises against the original."""

    program: Program
    gate: Gate
    rounds_to: str | None


def for_gate(
    gate: Gate,
    original: Program,
    patched: Program,
    rounds_to: str | None,
    steps: int,
    part: Part | None = None,
    precision: str = "float64",
) -> list[CaptureRequest]:
    """All that a look at the numbers needs if it passes, each once; `steps` are those of a trajectory, `precision` is
    that of the reference.

    With a `part` that is held against the original, and the training of `patched` against its.
    """
    if part is not None:
        first = for_gate(part.gate, original, part.program, part.rounds_to, steps, precision=precision)
        # A part that keeps the original's numbers has its captures too; where those do not even repeat themselves, the
        # rounding of the part is judged.
        gross = rounding(original, patched, rounds_to, precision) if rounds_to is not None else []
        gross += rounding(original, part.program, None)[1:2] if gross else []
        wanted = [*first, *gross, *luck([part.program, patched], SEEDS, steps)]
        return list({one.key: one for one in wanted}.values())
    if gate is Gate.BITWISE:
        return [bits(original), bits(patched)]
    if gate is Gate.ROUNDING:
        return rounding(original, patched, rounds_to, precision)
    gross = rounding(original, patched, rounds_to, precision) if rounds_to is not None else []
    return [*gross, *luck([original, patched], SEEDS, steps)]
