"""Whole runs are begun where there is time for them, and what had none is asked again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateAnswer, GateResult
from diagnose.program import Program
from diagnose.trial.ab.result import Comparison, Ending
from diagnose.trial.decision import measured
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.planning.numerics_check import NumericsChecks, PartialStack
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.whole_run.figures import Text
from diagnose.trial.whole_run.gate import DATA_ORDER, NO_TIME, WHOLE, WholeRunGate
from diagnose.trial.whole_run.observation import Observation
from diagnose.trial.whole_run.runs import NoTimeToRun, RunRequest, Runs
from diagnose.trial.whole_run.told_options import Told
from diagnose.units import NS_PER_S
from diagnose.verdict import Pair


def program(name: str) -> Program:
    root = Path("/copies") / name
    return Program(("train.py",), "script", root / "train.py", root, root)


ORIGINAL, PATCHED = program("original"), program("patched")
COUNTS = {"steps": 1, "calls": 1, "step_ns": 1}
RECORD = {"cut": False, "left": False, "losses": [], "parameters": [], "files": [], "elsewhere": [], **COUNTS}


@dataclass
class Runner(Runs):
    """Runs nothing; every run takes so long on the clock, and what outlasts the deadline is ended."""

    now_ns: list[int] = field(default_factory=lambda: [0])
    takes_ns: int = 10 * NS_PER_S
    batches_take_ns: int = 0

    def observe(self, wanted: Any) -> list[Observation]:
        if self.deadline.passed:
            raise NoTimeToRun
        self.now_ns[0] += self.takes_ns
        for _ in wanted:
            self.on_end()
        code = None if self.deadline.passed else 0
        records = [RECORD] if code == 0 else []
        return [Observation(Path("run"), code, Text(()), Text(()), {}, {}, records=records) for _ in wanted]

    def batches(self, program: Program, _batches: int, _passes: int) -> list[list[str]] | None:
        if program == PATCHED and self.batches_take_ns:
            self.now_ns[0] += self.batches_take_ns
            if self.deadline.passed:
                raise NoTimeToRun
        self.on_end()
        return [["hash"]]

    def told(self, _program: Program) -> Told:
        return Told()

    def forget(self, *_folders: Path) -> None:
        """Nothing is on disk."""


def checks(left_s: int, start_s: int = 5) -> tuple[NumericsChecks, Runner]:
    now_ns = [0]
    runner = Runner(cast("Workplace", None), cast("Workspace", None), 0, now_ns=now_ns)
    keeper = Gatekeeper(cast("Workplace", None), 1, Deadline(left_s * NS_PER_S, lambda: now_ns[0]))
    costs = CostModel(Schedule(), start_ns=start_s * NS_PER_S)
    return NumericsChecks(keeper, costs, lambda *_: None, WholeRunGate(runner)), runner


def test_what_the_first_whole_runs_take_is_foreseen() -> None:
    looks, runner = checks(50)
    (check,) = looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED)
    assert (check.answer, check.detail) == (GateAnswer.UNVERIFIED, f"{NO_TIME} (about 51.0 s)")
    assert runner.now_ns == [0]
    looks, runner = checks(51)
    (check,) = looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED)
    assert check.answer is GateAnswer.PASSED
    assert runner.now_ns[0] > 0


def test_what_time_cut_short_is_unverified_and_asked_again_where_there_is_time() -> None:
    looks, runner = checks(60)
    runner.takes_ns = 70 * NS_PER_S
    (check,) = looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED)
    assert (check.answer, check.detail) == (GateAnswer.UNVERIFIED, NO_TIME)
    looks.gatekeeper.deadline = Deadline(1000 * NS_PER_S, lambda: runner.now_ns[0])
    (check,) = looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED)
    assert check.answer is GateAnswer.PASSED


def test_what_was_found_before_the_time_was_up_still_holds_where_there_is_none_to_ask_again() -> None:
    looks, runner = checks(60)
    runner.batches_take_ns = 50 * NS_PER_S
    first = looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED, loading=True)
    assert [(one.name, one.answer) for one in first] == [
        (WHOLE, GateAnswer.PASSED),
        (DATA_ORDER, GateAnswer.UNVERIFIED),
    ]
    assert first[1].detail == NO_TIME  # and not that no loader was seen
    assert looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED, loading=True) == first


def test_whole_runs_give_a_sign_of_life_when_one_ends() -> None:
    looks, _ = checks(600)
    said: list[str] = []
    looks.on_phase = lambda phase, detail: said.append(f"{phase}: {detail}")
    looks.whole_runs(Gate.BITWISE, ORIGINAL, PATCHED)
    assert said[:3] == [
        "comparing whole runs: output, files and exit",
        "comparing whole runs: output, files and exit, 1 run done",
        "comparing whole runs: output, files and exit, 2 runs done",
    ]


@pytest.mark.parametrize(
    ("left_s", "may_wait", "runs"),
    [(200, True, False), (210, True, True), (200, False, True)],
    ids=["short", "enough", "no later check"],
)
def test_whole_runs_of_one_fix_wait_for_the_last_check_where_they_would_take_most_of_the_rest(
    left_s: int, may_wait: bool, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take 51 s."""
    looks, runner = checks(left_s)
    monkeypatch.setattr(looks.gatekeeper, "check", lambda gate, *_given, **_more: GateResult(gate, True, "as gated"))
    fixer = Fixer("faster", lambda _request: None, Gate.BITWISE, "idle.input")
    pairs = [Pair(0, 2e7, 1e7) for _ in range(4)]
    found = Comparison(pairs, generations=1, ending=Ending.SURE, step_ns=20_000_000, input_ns=(1e7, 0.0))
    verdict = looks.judged(
        measured(fixer, found, 0.01), fixer, found, ORIGINAL, PATCHED, halfway=None, may_wait=may_wait
    )
    assert verdict.decision is Decision.KEPT
    assert verdict.gate is not None
    assert (runner.now_ns != [0]) is runs
    assert [check.answer for check in verdict.gate.checks] == [GateAnswer.PASSED if runs else GateAnswer.UNVERIFIED]
    last_ns = looks.costs.final_ns(held=True)
    looks.check(Gate.BITWISE, ORIGINAL, PATCHED)  # of all kept fixes
    assert runner.now_ns != [0]
    assert (looks.costs.final_ns(held=True) < last_ns) is not runs  # time is set aside for what was put off


def test_a_part_runs_whole_where_the_training_of_all_stood_in_for_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, _runner = checks(1000)
    asked: list[tuple[Gate, Program, Program]] = []

    def check(gate: Gate, before: Program, after: Program, *_given: Any, **_more: Any) -> GateResult:
        asked.append((gate, before, after))
        return GateResult(gate, True, "as gated")

    monkeypatch.setattr(looks.gatekeeper, "check", check)
    monkeypatch.setattr(looks.gatekeeper, "foresee", lambda *_given: "rounding grows too fast in it")
    whole, part = (
        Fixer(gate.value, lambda _request: None, gate, "idle.input") for gate in (Gate.TRAINING, Gate.ROUNDING)
    )
    pairs = [Pair(0, 2e7, 1e7) for _ in range(4)]
    found = Comparison(pairs, generations=1, ending=Ending.SURE, step_ns=20_000_000, input_ns=(1e7, 0.0))
    halfway = PartialStack(program("part"), part)
    verdict = looks.judged(measured(whole, found, 0.01), whole, found, ORIGINAL, PATCHED, halfway)
    assert asked == [(Gate.TRAINING, ORIGINAL, PATCHED)]
    assert verdict.decision is Decision.KEPT
    assert verdict.gate is not None
    assert "its first steps were not compared: rounding grows too fast in it" in verdict.gate.detail
    assert [check.name for check in verdict.gate.checks] == [WHOLE]
    assert looks.whole is not None
    assert looks.whole.knows(Gate.ROUNDING, ORIGINAL, halfway.program, loading=False)


@pytest.mark.parametrize(("promise", "runs"), [(Gate.ROUNDING, True), (Gate.TRAINING, False)])
def test_whole_runs_are_compared_where_the_training_stood_in_for_a_reference(
    promise: Gate, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fix promises is what its whole runs are held to; one that changes the training promises none."""
    looks, runner = checks(600)
    monkeypatch.setattr(looks.gatekeeper, "check", lambda *_given, **_more: GateResult(Gate.TRAINING, True, "alike"))
    found = looks.check(promise, ORIGINAL, PATCHED)
    assert (found.gate, found.passed) == (Gate.TRAINING, True)
    assert (runner.now_ns != [0]) is runs


def test_no_run_begins_after_the_deadline() -> None:
    runs = Runs(cast("Workplace", None), cast("Workspace", None), 1, deadline=Deadline(0))
    with pytest.raises(NoTimeToRun):
        runs.observe([RunRequest(ORIGINAL)])
    with pytest.raises(NoTimeToRun):
        runs.batches(ORIGINAL, 1, 1)
