"""Compares two commits of a program: counts both, and once more under another seed where something became worse."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diagnose.program import Program
from diagnose.program.source import text_if_there
from diagnose.regressions.comparison import Difference, compare
from diagnose.regressions.costs import Costs
from diagnose.regressions.counting import Arm, Counter
from diagnose.regressions.lines import LineMap, line_map
from diagnose.regressions.snapshot import changed_files, commit_id, program_at
from diagnose.trial.process.process_group import Groups, undisturbed

STEPS = 4
"""Steps that are counted, after the first: enough to tell what grows from what varies."""
LIMIT = "2m"
"""The time for the steps of both commits, of which loading torch takes a part."""


@dataclass(frozen=True)
class Checked:
    """The result of comparing two commits."""

    base: str
    head: str
    """The ids of the commits; `.` for the work tree."""
    root: str
    script: str
    """The file that stands for the whole program, relative to the root where it lies there."""
    costs: tuple[Costs, Costs]
    differences: tuple[Difference, ...]

    @property
    def regressions(self) -> tuple[Difference, ...]:
        """The differences that nothing explains."""
        return tuple(one for one in self.differences if one.is_regression)


def check_commits(
    program: Program,
    base: str,
    head: str,
    *,
    steps: int = STEPS,
    limit_ns: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Checked:
    """Compare two commits of a program. Raises UsageError, InputError, ProgramFailed and Cancelled."""
    root = program.root
    ids = commit_id(root, base), commit_id(root, head)
    folder = Path(tempfile.mkdtemp(prefix="diagnose-check-pr-"))
    try:
        arms = [
            Arm(name, folder / name, program_at(program, commit, folder / name))
            for name, commit in zip(("base", "head"), ids, strict=True)
        ]
        lines = _lines(arms, changed_files(root, *ids))
        counter = Counter(program, folder, sys.executable, steps, limit_ns, dict(os.environ))
        with Groups(cancelled) as groups:
            costs = counter.count(arms, 0, groups)
            found = compare(costs[0], costs[1], lines)
            if any(one.is_regression for one in found):
                again = counter.count(arms, 1, groups)
                found = _confirmed(found, costs, again, lines)
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)
    script = os.path.relpath(program.entry, root) if program.entry is not None else program.words[0]
    return Checked(*ids, str(root), script, (costs[0], costs[1]), tuple(found))


def _confirmed(found: list[Difference], first: list[Costs], again: list[Costs], lines: LineMap) -> list[Difference]:
    """The differences that every pair of a run of the old commit and one of the new shows."""
    pairs = ((again[0], again[1]), (first[0], again[1]), (again[0], first[1]))
    seen = [{_key(one) for one in compare(base, head, lines)} for base, head in pairs]
    return [one for one in found if all(_key(one) in each for each in seen)]


def _key(one: Difference) -> tuple[str, str, int, bool]:
    return one.kind, one.file, one.line, one.is_regression


def _lines(arms: list[Arm], changed: list[str]) -> LineMap:
    base, head = (arm.program.root for arm in arms)
    return line_map({name: (text_if_there(base / name), text_if_there(head / name)) for name in changed})
