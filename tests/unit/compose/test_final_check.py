"""The last look at all kept fixes together, with whole runs that were put off until then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from composing import ITEM, LOADER, Stage, finding, fixer, replacing

from diagnose.compose.proposals import candidates
from diagnose.model import Decision, Gate, GateAnswer, GateCheck
from diagnose.trial.bench import Trial
from diagnose.trial.planning.numerics_check import PUT_OFF, with_checks
from diagnose.trial.whole_run.gate import WHOLE

MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"), Gate.TRAINING)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Two fixes that change no bit and one that changes the training, all kept."""
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [])
    fixers = (LOADER, ITEM, MODEL)
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(fixers)]
    decisions = {"all together": Decision.NO_CHANGE, **{one.name: Decision.KEPT for one in fixers}}
    return Stage(tmp_path, fixers, findings, decisions, allow=frozenset(Gate))


def test_beside_a_fix_that_changes_the_training_the_others_run_whole_without_it(stage: Stage) -> None:
    stage.bench.owes_whole_runs = True
    outcome = stage.run()
    ((gate, text),) = stage.bench.ran_whole
    assert gate is Gate.BITWISE
    assert "model = 30" not in text
    assert outcome.final is not None
    assert outcome.final.gate is not None
    assert [check.answer for check in outcome.final.gate.checks] == [GateAnswer.PASSED]


def test_a_verdict_that_left_whole_runs_to_the_end_tells_of_them_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off = GateCheck(WHOLE, GateAnswer.UNVERIFIED, PUT_OFF)
    attempt = stage.bench.attempt

    def with_put_off(*args: Any, **options: Any) -> Trial:
        verdict = attempt(*args, **options).verdict
        assert verdict.gate is not None
        gate = with_checks(verdict.gate, (put_off,))
        return Trial(replace(verdict, gate=gate, summary=f"as told; {gate.detail}"))

    monkeypatch.setattr(stage.bench, "attempt", with_put_off)
    stage.bench.owes_whole_runs = True
    verdicts = stage.run().verdicts
    assert not [one.summary for one in verdicts if PUT_OFF in one.summary]
    checks = [check for one in verdicts if one.gate is not None for check in one.gate.checks]
    assert checks and {check.answer for check in checks} == {GateAnswer.PASSED}


def test_what_was_not_put_off_is_not_run_again(stage: Stage) -> None:
    stage.run()
    assert stage.bench.ran_whole == []


def test_a_whole_run_that_differs_sends_for_the_fix_without_which_none_does(stage: Stage) -> None:
    stage.bench.owes_whole_runs = True
    stage.bench.whole_answer = GateAnswer.REFUSED
    blamed = {one.fixer: one for one in stage.run().verdicts}["narrow-model"]
    assert blamed.decision is Decision.CHANGES_NUMBERS
    assert "in a whole run as run; without it they hold" in blamed.summary
