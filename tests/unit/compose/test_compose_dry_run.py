"""`diagnose fix --dry-run`, `--only` and `--skip`: which fixes come to their turn, told without trying any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, SOURCE, Stage, finding, fixer, replacing

from diagnose import compose
from diagnose.cli.programs.fixer_selection import limit_fixers, names_in
from diagnose.compose.dry_run import NOT_ALLOWED, not_allowed
from diagnose.compose.proposals.proposed_edits import Variant
from diagnose.errors import UsageError
from diagnose.fixer import Advice, Edits, Fixer, Request
from diagnose.model import Accounting, Decision, Diagnosis, Finding, Gate, Steps, Verdict
from diagnose.plugins import Catalogue
from diagnose.session import VerdictReached
from diagnose.trace import Trace

HALF = fixer("half-numbers", replacing("model = 3", "model = 3.0"), Gate.TRAINING)
BY_HAND = fixer("by-hand", lambda _request: Advice("do it yourself"))
KNOBS = fixer("many-loaders", replacing("loader = 1", "loader = "), settings=lambda _request: ({"n": 2}, {"n": 4}))


def broken(_request: Request) -> None:
    raise KeyError("nothing here")


def previewed(stage: Stage, *findings: Finding, allow: frozenset[Gate] = compose.WITHOUT_ASKING) -> tuple[Verdict, ...]:
    diagnosis = Diagnosis(1, (), 1, None, Steps(4, 20_000_000), Accounting(), findings)
    catalogue = Catalogue({}, {one.name: one for one in stage.fixers})
    return compose.dry_run(stage.program, diagnosis, [Trace("run")], catalogue, stage.events.append, allow)


def test_what_would_be_tried_is_shown_with_its_diff_and_nothing_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER, ITEM], [])
    item, loader = previewed(stage, finding("a", 3, "faster-loader"), finding("b", 9, "no-item"))
    assert [one.fixer for one in (item, loader)] == ["no-item", "faster-loader"]
    assert {one.decision for one in (item, loader)} == {Decision.NOT_TRIED}
    assert (item.predicted_ns, loader.predicted_ns) == (9_000_000, 3_000_000)
    assert "+loss = 20" in item.diff
    assert "+loader = 10" in loader.diff
    assert "loss = 20" not in loader.diff.replace(" loss = 2\n", ""), "each is for the program as it is"
    assert stage.bench.attempts == []
    assert stage.bench.copies == {}
    assert (tmp_path / "train.py").read_text() == SOURCE
    assert [type(event) for event in stage.events] == [VerdictReached, VerdictReached]


def test_training_fixes_name_the_word_that_allows_them(tmp_path: Path) -> None:
    (asked,) = previewed(Stage(tmp_path, [HALF], []), finding("a", 3, "half-numbers"))
    assert "`--allow training`" in asked.summary
    (allowed,) = previewed(Stage(tmp_path, [HALF], []), finding("a", 3, "half-numbers"), allow=frozenset(Gate))
    assert "`--allow training`" not in allowed.summary


def test_settings_are_named_and_advice_and_breakdowns_are_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [KNOBS, BY_HAND, fixer("broken", broken)], [])
    knobs, advice, failed = previewed(
        stage, finding("a", 9, "many-loaders"), finding("b", 3, "by-hand"), finding("c", 2, "broken")
    )
    assert knobs.summary.endswith("the best of 2 settings would be chosen: n=2; n=4")
    assert (advice.decision, advice.summary) == (Decision.ADVICE, "do it yourself")
    assert (failed.decision, "nothing here" in failed.summary) == (Decision.FAILED, True)


def test_names_may_stand_between_commas_or_each_by_itself() -> None:
    assert names_in(["a,b", " c ", "a"]) == ("a", "b", "c")
    assert names_in(None) == ()


def test_only_and_skip_leave_the_fixers_that_the_user_wants() -> None:
    catalogue = Catalogue({}, {one.name: one for one in (LOADER, ITEM, HALF)})
    assert list(limit_fixers(catalogue, ("no-item",), ()).fixers) == ["no-item"]
    assert list(limit_fixers(catalogue, (), ("no-item",)).fixers) == ["faster-loader", "half-numbers"]


@pytest.mark.parametrize(
    ("only", "skip", "said"),
    [
        (("no-itme",), (), "no-itme is no fixer .*; did you mean no-item"),
        ((), ("faster-loder",), "did you mean faster-loader"),
        (("no-item",), ("no-item",), "leave no fixer"),
    ],
)
def test_names_of_no_fixer_are_refused(only: tuple[str, ...], skip: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        limit_fixers(Catalogue({}, {one.name: one for one in (LOADER, ITEM)}), only, skip)


def test_what_is_not_allowed_says_why_it_changes_the_training() -> None:
    workers = Fixer("loader-workers", lambda _request: None, Gate.TRAINING, "idle.input")
    answer = Edits({}, "load samples in 2 worker processes", Gate.TRAINING, "samples draw random numbers")
    assert not_allowed([Variant({}, answer, workers)]) == (
        "it changes the training itself: samples draw random numbers; `--allow training` lets it be tried"
    )
    assert not_allowed([Variant({}, replace(answer, because=""), workers)]) == NOT_ALLOWED
