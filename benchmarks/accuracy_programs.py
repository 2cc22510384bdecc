"""The programs of the sick bay: what `ailment.toml` says of each."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SICKBAY = Path(__file__).resolve().parent / "sickbay"
ARMS = ("train", "healthy")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Program:
    """One folder of the sick bay; the fields of its TOML (see benchmarks/sickbay/README.md)."""

    folder: Path
    title: str
    device: str
    ranks: int
    ailment: str
    """The rule that must come first; empty for a healthy program that looks odd."""
    where: str
    code: tuple[str, ...]
    """Parts of lines; the line of any of them is right. Empty where no line is at fault."""
    also: frozenset[str]
    why: str
    trace_steps: int = 4
    run_steps: int = 0
    """Steps that `diagnose run` watches, where the trace alone would miss the ailment; 0: until it is written."""
    arguments: tuple[str, ...] = ()
    gpus: int = 1
    """Devices that a run takes: at least one a process."""
    healthy_ranks: int = 0
    """Processes of the healthy program, where they are others than `ranks`."""
    work_ratio: float = 1
    """Work of a step of the healthy program, in steps of the ailing one."""
    healthy_also: frozenset[str] = frozenset()
    """Rules that are true of the healthy program too: what it leaves undone on purpose."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables by arm, for what must be known before torch is imported."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def arms(self) -> tuple[str, ...]:
        """The program's scripts that exist."""
        return tuple(arm for arm in ARMS if (self.folder / f"{arm}.py").exists())

    def ranks_of(self, arm: str) -> int:
        """Processes of this arm."""
        return self.healthy_ranks or self.ranks if arm == "healthy" else self.ranks

    def lines(self) -> tuple[int, ...]:
        """Line numbers in `where` that are right (from 1). Raises ValueError where the code is not there just once."""
        if not self.code:
            return ()
        lines = (self.folder / self.where).read_text().splitlines()
        return tuple(_only_line(lines, code, self.name) for code in self.code)

    def functions(self) -> tuple[range, ...]:
        """The lines of the functions that hold those lines, of nested ones the innermost."""
        if not self.code:
            return ()
        tree = ast.parse((self.folder / self.where).read_text())
        spans = [
            range(node.lineno, (node.end_lineno or 0) + 1) for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)
        ]
        around = ([span for span in spans if line in span] for line in self.lines())
        return tuple(min(found, key=len) for found in around if found)


def programs(only: Sequence[str] = (), folder: Path = SICKBAY) -> list[Program]:
    """All programs, or those named, by name. Raises ValueError for a name that is not there."""
    found = [_read(path.parent) for path in sorted(folder.glob("*/ailment.toml"))]
    unknown = set(only) - {program.name for program in found}
    if unknown:
        raise ValueError(f"no such program: {', '.join(sorted(unknown))}")
    return [program for program in found if not only or program.name in only]


def _read(folder: Path) -> Program:
    facts: dict[str, Any] = tomllib.loads((folder / "ailment.toml").read_text())
    code = facts.pop("code")
    return Program(
        folder=folder,
        code=tuple([code] if isinstance(code, str) and code else code),
        also=frozenset(facts.pop("also")),
        healthy_also=frozenset(facts.pop("healthy_also", ())),
        arguments=tuple(facts.pop("arguments", ())),
        gpus=max(facts["ranks"], facts.pop("gpus", 1)),
        **facts,
    )


def _only_line(lines: Sequence[str], code: str, name: str) -> int:
    at = [number for number, line in enumerate(lines, 1) if code in line]
    if len(at) != 1:
        raise ValueError(f"{name}: {code!r} stands on {len(at)} lines, not on one")
    return at[0]
