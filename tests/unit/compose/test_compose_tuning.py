"""Knobs of fixes that were tried at once, set on the program with all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from composing import ALL, ITEM, MODEL, SOURCE, TORCH_AGAIN, Stage, fixer, kept_text, together

from diagnose.compose.search.tuning import outcome
from diagnose.fixer import Edits, Request
from diagnose.model import Decision, Gate, GateResult, Interval, Scalar
from diagnose.program import Program
from diagnose.session import fold
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")


def with_knob(tmp_path: Path, gate: Gate = Gate.BITWISE) -> Stage:
    def workers(request: Request) -> Edits:
        text = request.sources[next(iter(request.sources))]
        return Edits({next(iter(request.sources)): text.replace("loader = 1\n", f"loader = {_number(request)}\n")}, "")

    knob = fixer("workers", workers, gate, settings=lambda _request: ({"count": 2}, {"count": 4}))
    made = together(tmp_path, ITEM, knob, MODEL)
    made.bench.best_setting = 1
    return made


def test_knobs_are_set_on_the_program_with_all_of_them(tmp_path: Path) -> None:
    made = with_knob(tmp_path)
    outcome = made.run()
    assert made.bench.attempts[0][2] == ALL.replace("loader = 10", "loader = 2")
    assert made.bench.scales == [True]
    assert kept_text(outcome) == ALL.replace("loader = 10", "loader = 4")
    (told,) = [verdict for verdict in outcome.verdicts if verdict.fixer == "workers"]
    assert told.setting == {"count": 4}
    assert "+loader = 4" in told.diff


@pytest.mark.parametrize(("left_ns", "asked"), [(30, True), (15, False)])
def test_no_other_setting_is_asked_for_where_there_is_no_time_to_try_one(
    tmp_path: Path, left_ns: int, asked: bool
) -> None:
    """To look at a large program takes seconds."""
    answered: list[tuple[int, Scalar]] = []

    def workers(request: Request) -> Edits:
        answered.append((len(made.bench.attempts), _number(request)))
        ((path, text),) = request.sources.items()
        return Edits({path: text.replace("loader = 1\n", f"loader = {_number(request)}\n")}, "")

    knob = fixer("workers", workers, settings=lambda _request: ({"count": 2}, {"count": 4}))
    made = together(tmp_path, ITEM, knob, MODEL, budget=Deadline(left_ns, lambda: 0))
    made.bench.trial_takes_ns = 10
    made.run()
    assert len(made.bench.attempts) == 1
    assert ((1, 4) in answered) is asked


def whole_cannot_be_checked(made: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no time for another look at the numbers of the original."""
    look = made.bench.gate

    def gate(gate: Gate, original: Program, patched: Program, *more: Any, **said: Any) -> GateResult:
        found = look(gate, original, patched, *more, **said)
        return replace(found, passed=None) if made.bench.copies[original.root] == SOURCE else found

    monkeypatch.setattr(made.bench, "gate", gate)


@pytest.mark.parametrize(("gate", "count"), [(Gate.BITWISE, 4), (Gate.ROUNDING, 2)])
def test_a_setting_that_rounds_goes_where_the_whole_cannot_be_checked_and_is_not_told_as_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, count: int
) -> None:
    made = with_knob(tmp_path, gate)
    whole_cannot_be_checked(made, monkeypatch)
    outcome = made.run()
    assert kept_text(outcome) == ALL.replace("loader = 10", f"loader = {count}")
    (told,) = [verdict for verdict in outcome.verdicts if verdict.fixer == "workers"]
    assert told.decision is Decision.KEPT
    assert told.setting == {"count": count}
    assert f"+loader = {count}" in told.diff
    assert ("back at count=2: with count=4 the numbers" in told.summary) is (gate is Gate.ROUNDING)


def test_what_a_setting_takes_beside_another_is_told_without_a_sign() -> None:
    longer = Interval(-0.058, -0.1, 0.0)
    assert outcome({"n": 8}, {"n": 4}, longer) == "n=8: 5.8 % more time per step than with n=4"
    assert outcome({"n": 8}, {"n": 4}, replace(longer, estimate=0.5)) == "n=8: 50 % less time per step than with n=4"
    assert outcome({"n": 8}, {"n": 4}, None) == "n=8: gave no answer"


@pytest.mark.parametrize("passes", [False, None])
def test_a_setting_that_does_not_keep_the_numbers_is_not_taken(tmp_path: Path, passes: bool | None) -> None:
    made = with_knob(tmp_path)
    made.bench.gate_by_text = {"loader = 4": passes}
    outcome = made.run()
    assert kept_text(outcome) == ALL.replace("loader = 10", "loader = 2")
    assert "workers stays at count=2: count=4 is faster, but the numbers" in fold(made.events).warnings[0]


def test_a_setting_that_was_measured_beside_nothing_is_not_taken(tmp_path: Path) -> None:
    made = with_knob(tmp_path)
    made.bench.sweep_fails = True
    assert kept_text(made.run()) == ALL.replace("loader = 10", "loader = 2")


def test_a_setting_that_promises_less_is_not_tried(tmp_path: Path) -> None:
    def workers(request: Request) -> Edits:
        (path,) = request.sources
        text = request.sources[path].replace("loader = 1\n", f"loader = {_number(request)}\n")
        return Edits({path: text}, "", Gate.ROUNDING if _number(request) == 4 else Gate.BITWISE)

    knob = fixer("workers", workers, settings=lambda _request: ({"count": 2}, {"count": 4}))
    made = together(tmp_path, ITEM, knob, TORCH_AGAIN)
    made.bench.best_setting = 1
    made.run()
    assert made.bench.scales == []


def _number(request: Request) -> Scalar:
    return request.setting["count"]
