"""Runs copies of a program side by side until each has counted its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diagnose.collect.records import COSTS
from diagnose.errors import ProgramFailed
from diagnose.program import Program
from diagnose.program.copy import copy_environment
from diagnose.regressions.costs import Costs, read_costs
from diagnose.regressions.snapshot import in_original
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Group, Groups
from diagnose.trial.process.write_guard import protection
from diagnose.units import NS_PER_S, format_seconds

_HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A machine with devices counts what one without them does; copies that run side by side take a core each."""
_ENDING_NS = 10 * NS_PER_S
"""Other ranks count as many steps as the first and leave with it; what still runs after this long is ended."""


@dataclass(frozen=True)
class Arm:
    """One copy of the program: its name in messages, where it lies, and what it is."""

    name: str
    folder: Path
    program: Program


@dataclass(frozen=True)
class Counter:
    """Starts copies of a program that lies at `original`."""

    original: Program
    folder: Path
    python: str
    steps: int
    limit_ns: int
    environment: Mapping[str, str]

    def count(self, arms: Sequence[Arm], seed: int, groups: Groups) -> list[Costs]:
        """Return the costs of each arm, all run at once. Raises ProgramFailed, and Cancelled from `groups`."""
        guard = {"guard": protection(self.original, self.folder)}
        copies = {arm.program.root: arm for arm in arms}

        def environment_of(program: Program) -> dict[str, str]:
            return copy_environment(self.original, copies[program.root].folder, self.environment)

        place = Workplace(groups, self.folder, self.python, environment_of, guard)
        recipe = {"mode": "step_costs", "steps": self.steps, "seed": seed}
        folders = [self.folder / f"{arm.name}-{seed}" for arm in arms]
        running = [
            place.start(arm.program, recipe, folder, after=_HIDDEN) for arm, folder in zip(arms, folders, strict=True)
        ]
        deadline = time.monotonic_ns() + self.limit_ns
        found = []
        for arm, folder, group in zip(arms, folders, running, strict=True):
            self._wait(arm, folder, group, deadline)
            costs = read_costs(folder, lambda file, arm=arm: in_original(file, self.original.root, arm.folder))  # type: ignore[misc]
            if costs is None or not costs.steps:
                said = group.last_words() or "it took too few steps"
                raise ProgramFailed(
                    f"{arm.name} ended without a step that could be counted:\n{said}", group.returncode or 0
                )
            found.append(costs)
        return found

    def _wait(self, arm: Arm, folder: Path, group: Group, deadline: int) -> None:
        """Wait until the first rank has counted its steps, or the program has ended by itself."""
        while not group.exited and not any(folder.glob(f"rank*/{COSTS}")):
            if time.monotonic_ns() > deadline:
                raise ProgramFailed(
                    f"{arm.name}: {self.steps} steps took longer than {format_seconds(self.limit_ns / NS_PER_S)} on "
                    "the CPU; make the model or the batch smaller by the program's arguments, or raise --budget",
                    0,
                )
            group.rest()
        if not group.exited:
            group.wait(_ENDING_NS)  # the other ranks leave too
        group.end()
