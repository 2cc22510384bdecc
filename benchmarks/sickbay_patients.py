"""The sick bay's programs for one device, each with an expert's version."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accuracy_programs import Program, programs

NAIVE = "naive_gpt"
"""Has many ailments and no ailment.toml: what it measures is the whole of `fix`, not one rule."""
TINY = ("--tiny",)
_TINY_NAIVE = (
    *("--batch", "2", "--length", "32", "--vocabulary", "101"),
    *("--width", "64", "--heads", "2", "--layers", "2"),
)
_SCRIPTS = ("train.py", "healthy.py", "expert.py")
_STEPS = "20000"
"""More than any trial takes: whoever measures ends the program."""


@dataclass(frozen=True)
class Patient:
    """One program as found, and as an expert has it."""

    name: str
    found: Path
    expert: Path | None
    """None where the program is in order already."""
    arguments: tuple[str, ...] = ()
    tiny: tuple[str, ...] = TINY
    """Arguments that make it small enough for a CPU."""
    needs_device: bool = True
    expert_work: float = 1
    """Work of a step of the expert's program, in steps of the one as found."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By script's name without suffix: what must be known before torch is imported."""

    def words(self, *, tiny: bool) -> list[str]:
        """The arguments of the script."""
        return ["--steps", _STEPS, *self.arguments, *(self.tiny if tiny else ())]

    def variables(self, script: Path) -> dict[str, str]:
        """Environment variables that the program needs."""
        return dict(self.environment.get(script.stem, {}))

    def lay_out(self, folder: Path, script: Path) -> Path:
        """A folder with the script, as `train.py`, and the modules it imports; returns the script there."""
        folder.mkdir(parents=True)
        for path in self.found.parent.glob("*.py"):
            if path.name not in _SCRIPTS:
                shutil.copy(path, folder)
        return Path(shutil.copy(script, folder / "train.py"))


def patients(folder: Path, only: Sequence[str] = ()) -> list[Patient]:
    """The programs for one device: those named, in that order; else all, and those in order last.

    Raises ValueError for a name that is not there.
    """
    found = [patient(program) for program in programs(folder=folder) if program.gpus == 1]
    naive = folder / NAIVE / "train.py"
    if naive.exists():
        found.insert(0, Patient(NAIVE, naive, naive.with_name("expert.py"), tiny=_TINY_NAIVE, needs_device=False))
    by_name = {one.name: one for one in found}
    unknown = set(only) - by_name.keys()
    if unknown:
        raise ValueError(f"no such program for one device: {', '.join(sorted(unknown))}")
    if only:
        return [by_name[name] for name in dict.fromkeys(only)]
    return sorted(found, key=lambda one: one.expert is None)


def patient(program: Program) -> Patient:
    """A program of the sick bay."""
    ill = "train" in program.arms
    healthy = program.folder / "healthy.py"
    return Patient(
        program.name,
        program.folder / "train.py" if ill else healthy,
        healthy if ill else None,
        program.arguments,
        needs_device=program.device == "cuda",
        expert_work=program.work_ratio,
        environment=program.environment,
    )
