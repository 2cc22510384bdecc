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
from diagnose.trial.whole_run.runs import NoTimeToRun, RunRequest, Runs
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
    printed = "{} right"
    disturbed: list[int]
    has_time = True

    def observe(self, wanted: Any) -> list[Observation]:
        if not self.has_time and any("disturb" in one.recipe for one in wanted):
            raise NoTimeToRun
        return [self._observed(one) for one in wanted]

    def _observed(self, wanted: RunRequest) -> Observation:
        seed = wanted.recipe.get("disturb_seed")
        if seed is not None:
            self.disturbed.append(seed)
        count = self.patched if wanted.program is PATCHED else FLIPS.get(cast("int", seed), 57)
        printed, none = read_text(self.printed.format(count), {}), read_text("", {})
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
    runner = counting(patched)
    (check,) = WholeRunGate(runner).check(Gate.ROUNDING, ORIGINAL, PATCHED)
    assert (check.answer, runner.disturbed) == (answer, runs)


def test_figures_that_differ_by_rounding_alone_need_no_further_run() -> None:
    runner = counting(58)
    runner.printed = "loss 12.34{}"  # one unit of its last digit
    (check,) = WholeRunGate(runner).check(Gate.ROUNDING, ORIGINAL, PATCHED)
    assert (check.answer, runner.disturbed) == (GateAnswer.PASSED, [])


def test_what_had_no_time_to_be_told_from_noise_is_refused_and_says_so() -> None:
    runner = counting(58)
    runner.has_time = False
    (check,) = WholeRunGate(runner).check(Gate.ROUNDING, ORIGINAL, PATCHED)
    assert check.answer is GateAnswer.REFUSED
    assert check.detail == (
        "the patched program prints 58 instead of 57 in “# right”; "
        "the budget left no time to see whether the original varies as much by itself"
    )


def counting(patched: int) -> Counting:
    runner = Counting(cast("Workplace", None), cast("Workspace", None), 0)
    runner.patched, runner.disturbed = patched, []
    return runner
