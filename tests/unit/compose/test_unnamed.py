"""What is tried although no finding names it, and what stays a candidate when its finding goes with another fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from composing import LOADER, MODEL, Stage, finding

from diagnose.compose.proposals.candidates import Candidate
from diagnose.compose.proposals.fixes_without_finding import UNNAMED, unnamed
from diagnose.fixer import Advice
from diagnose.model import Accounting, Confidence, Decision, Diagnosis, Facts, Finding, Severity, Steps
from diagnose.plugins import Catalogue

BROAD = replace(MODEL, name="broad", whole_step=True)
DEVICE = Facts(device_name="a device")
UNTOLD = Finding(UNNAMED, Severity.LOW, None, 0, 0.0, Confidence.HINT, "")

pytestmark = pytest.mark.usefixtures("nothing_new")


def diagnosis_of(compute: int, idle: int) -> Diagnosis:
    spent = Accounting(compute=compute, idle={"input": idle})
    return Diagnosis(1, (), 1, None, Steps(4, 20_000_000), spent, ())


def tried(diagnosis: Diagnosis, facts: Facts = DEVICE, named: frozenset[str] = frozenset()) -> list[str]:
    catalogue = Catalogue({}, {one.name: one for one in (LOADER, BROAD)})
    return [one.fixer.name for one in unnamed(diagnosis, facts, catalogue, named)]


def test_a_busy_device_has_the_fixers_of_a_whole_step_tried() -> None:
    assert tried(diagnosis_of(90, 10)) == ["broad"]
    assert tried(diagnosis_of(90, 10), named=frozenset({"broad"})) == []
    assert tried(diagnosis_of(10, 90)) == []
    assert tried(diagnosis_of(90, 10), Facts()) == []


def test_they_promise_nothing_and_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.compose.search.greedy_search.unnamed", lambda *_: [Candidate(UNTOLD, BROAD)])
    decisions = {"faster-loader": Decision.KEPT, "broad": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, BROAD], [finding("a", 9, "faster-loader")], decisions)
    outcome = stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "broad"]
    assert {verdict.fixer: verdict.predicted_ns for verdict in outcome.verdicts}["broad"] == 0


def test_what_has_nothing_for_them_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer: Advice | None = None
    idle = replace(BROAD, rewrite=lambda _request: answer)
    monkeypatch.setattr("diagnose.compose.search.greedy_search.unnamed", lambda *_: [Candidate(UNTOLD, idle)])
    assert Stage(tmp_path, [idle], []).run().verdicts == ()
    answer = Advice("by hand")
    assert Stage(tmp_path, [idle], []).run().verdicts == ()
