"""What a rounding fix prints otherwise is looked at beside more runs of the program as found, before it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from diagnose.model import Gate, GateAnswer
from diagnose.program import Program
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.whole_run.figures import read_text
from diagnose.trial.whole_run.gate import WholeRunGate
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.runs import Runs, Wanted
from diagnose.trial.whole_run.told_options import Told

FLIPS = {0: 57, 1: 57, 2: 58, 3: 57}
"""What the program as found counts, by the seed that its weights are disturbed with."""
RECORD = {"cut": False, "left": False, "losses": [], "parameters": [], "files": [], "elsewhere": []}


def program(name: str) -> Program:
    root = Path("/copies") / name
    return Program(("train.py",), "script", root / "train.py", root, root)


ORIGINAL, PATCHED = program("original"), program("patched")


class Counting(Runs):
    """Runs nothing: says what programs would print."""

    patched = 0
    disturbed: list[int]

    def observe(self, wanted: Any) -> list[Observation]:
        return [self._observed(one) for one in wanted]

    def _observed(self, wanted: Wanted) -> Observation:
        seed = wanted.recipe.get("disturb_seed")
        if seed is not None:
            self.disturbed.append(seed)
        count = self.patched if wanted.program is PATCHED else FLIPS.get(cast("int", seed), 57)
        printed, none = read_text(f"{count} right", {}), read_text("", {})
        records = [{**RECORD, "steps": 1, "calls": 1, "step_ns": 1}]
        return Observation(Path("run"), 0, printed, none, {}, {}, records=records)

    def told(self, _program: Program) -> Told:
        return Told()

    def forget(self, *_folders: Path) -> None:
        """Nothing is on disk."""


@pytest.mark.parametrize(
    ("patched", "answer", "runs"),
    [(57, GateAnswer.PASSED, []), (58, GateAnswer.PASSED, [0, 1, 2, 3]), (80, GateAnswer.REFUSED, [0, 1, 2, 3])],
    ids=["the same", "flips", "changes"],
)
def test_a_count_that_flips_in_four_runs_may_flip_in_the_patched_one(
    patched: int, answer: GateAnswer, runs: list[int]
) -> None:
    runner = Counting(cast("Workplace", None), cast("Workspace", None), 0)
    runner.patched, runner.disturbed = patched, []
    (check,) = WholeRunGate(runner).check(Gate.ROUNDING, ORIGINAL, PATCHED)
    assert (check.answer, runner.disturbed) == (answer, runs)
