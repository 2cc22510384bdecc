"""Whose turn it is: by promise, by order class, by what fixers ask of each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, MODEL, SOURCE, FakeBench, Stage, finding, fixer, replacing, together

from diagnose.compose.proposals.proposals import Proposal
from diagnose.fixer import Advice, Edits, Request
from diagnose.model import TOGETHER, Confidence, Decision, Gate
from diagnose.plugins import load
from diagnose.session import PhaseChanged
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")


def test_fixes_that_change_the_training_come_after_all_others(tmp_path: Path) -> None:
    small = fixer("no-item", replacing("item", "none"))
    large = fixer("faster-loader", replacing("slow", "fast"), gate=Gate.TRAINING)
    findings = [finding("a", 9, "faster-loader"), finding("b", 1, "no-item")]
    verdicts = dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT)
    stage = Stage(tmp_path, [large, small], findings, verdicts, allow=frozenset(Gate))
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["no-item", "faster-loader"]


def test_a_fix_that_excludes_a_kept_one_is_told_and_not_run(tmp_path: Path) -> None:
    graphs = fixer("graphs", replacing("model = 3", "model = 30"), conflicts=("no-item",))
    for one, other in ((graphs, ITEM), (ITEM, graphs)):
        findings = [finding("a", 9, one.name), finding("b", 3, other.name)]
        folder = tmp_path / one.name
        folder.mkdir()
        stage = Stage(folder, [graphs, ITEM], findings, {one.name: Decision.KEPT})
        verdict = stage.run().verdicts[1]
        assert [name for name, _, _ in stage.bench.attempts] == [one.name]
        assert (verdict.fixer, verdict.decision) == (other.name, Decision.NOT_TRIED)
        assert verdict.summary == f"it excludes {one.name}, which is kept"
        assert verdict.diff != ""


def test_one_that_was_not_kept_excludes_nobody(tmp_path: Path) -> None:
    graphs = fixer("graphs", replacing("model = 3", "model = 30"), conflicts=("no-item",))
    findings = [finding("a", 9, "graphs"), finding("b", 3, "no-item")]
    decisions = {"graphs": Decision.SLOWER, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [graphs, ITEM], findings, decisions)
    assert [verdict.decision for verdict in stage.run().verdicts] == [Decision.SLOWER, Decision.KEPT]


def test_an_excluded_fixer_gives_no_advice_either(tmp_path: Path) -> None:
    by_hand = fixer("by-hand", lambda _request: Advice("do the other thing"), conflicts=("no-item",))
    findings = [finding("a", 9, "no-item"), finding("b", 3, "by-hand")]
    stage = Stage(tmp_path, [by_hand, ITEM], findings, {"no-item": Decision.KEPT})
    assert [verdict.fixer for verdict in stage.run().verdicts] == ["no-item"]


def attempted(stage: Stage) -> list[str]:
    stage.run()
    return [name for name, _, _ in stage.bench.attempts if name != TOGETHER]


def test_among_the_fixers_of_one_finding_the_order_class_decides(tmp_path: Path) -> None:
    late = fixer("late", replacing("model = 3", "model = 30"), order=60)
    early = fixer("early", replacing("loss = 2", "loss = 20"), order=20)
    none = dict.fromkeys(("late", "early"), Decision.NO_CHANGE)
    assert attempted(Stage(tmp_path, [late, early], [finding("a", 9, "late", "early")], none)) == ["early", "late"]


def test_what_a_fixer_rests_on_has_its_turn_first_where_it_is_a_candidate(tmp_path: Path) -> None:
    graphs = fixer("graphs", replacing("model = 3", "model = 30"), after=("no-item", "unheard-of"))
    findings = [finding("a", 9, "graphs"), finding("b", 5, "faster-loader"), finding("c", 3, "no-item")]
    decisions = dict.fromkeys(("graphs", "faster-loader", "no-item"), Decision.NO_CHANGE)
    stage = Stage(tmp_path, [graphs, LOADER, ITEM], findings, decisions)
    assert attempted(stage) == ["no-item", "graphs", "faster-loader"]


def test_fixers_that_wait_for_each_other_still_have_their_turns(tmp_path: Path) -> None:
    one = fixer("one", replacing("model = 3", "model = 30"), after=("two",))
    two = fixer("two", replacing("loss = 2", "loss = 20"), after=("one",))
    decisions = dict.fromkeys(("one", "two"), Decision.NO_CHANGE)
    stage = Stage(tmp_path, [one, two], [finding("a", 9, "one"), finding("b", 3, "two")], decisions)
    assert sorted(attempted(stage)) == ["one", "two"]


def test_a_fixer_that_serves_two_findings_is_predicted_to_save_their_sum(tmp_path: Path) -> None:
    findings = [finding("a", 4, "no-item"), finding("b", 5, "faster-loader"), finding("c", 3, "no-item", line=2)]
    decisions = dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT)
    stage = Stage(tmp_path, [LOADER, ITEM], findings, decisions)
    first = stage.run().verdicts[0]
    assert (first.fixer, first.predicted_ns) == ("no-item", 7_000_000)
    assert [place.line for place in first.where] == [3, 2]


def test_the_sum_is_no_surer_than_its_least_sure_part(tmp_path: Path) -> None:
    bound = replace(finding("b", 3, "no-item"), confidence=Confidence.BOUND)
    stage = Stage(tmp_path, [ITEM], [finding("a", 4, "no-item"), bound], {"no-item": Decision.KEPT})
    (verdict,) = stage.run().verdicts
    assert (verdict.predicted_ns, verdict.prediction) == (7_000_000, Confidence.BOUND)


@pytest.mark.parametrize("confidence", [Confidence.MEASURED, Confidence.BOUND])
def test_what_changes_more_than_findings_count_is_predicted_as_an_estimate(
    tmp_path: Path, confidence: Confidence
) -> None:
    """Neither is all of it counted, nor is the figure a limit: convolutions may be faster in another format, too."""
    more = replace(ITEM, uncounted=True)
    counted = replace(finding("a", 4, "no-item"), confidence=confidence)
    (verdict,) = Stage(tmp_path, [more], [counted], {"no-item": Decision.KEPT}).run().verdicts
    assert (verdict.predicted_ns, verdict.prediction) == (4_000_000, Confidence.HINT)


def test_the_conversions_that_channels_last_takes_out_are_an_estimate_of_what_it_saves() -> None:
    """Of 7.68 ms that it saved of a program, 0.88 ms were conversions; of another's 9.4 ms, 10.1 ms were."""
    conversions = finding("layout-transposes", 10, "channels-last")
    assert Proposal(load().fixers["channels-last"], (conversions,)).prediction is Confidence.HINT


def test_a_fixer_that_treats_less_than_it_was_proposed_for_goes_back_into_the_queue(tmp_path: Path) -> None:
    picky = fixer("picky", lambda request: ITEM.rewrite(request) if request.finding.rule == "c" else None)
    findings = [finding("a", 4, "picky"), finding("b", 5, "faster-loader"), finding("c", 3, "picky")]
    decisions = dict.fromkeys(("faster-loader", "picky"), Decision.NO_CHANGE)
    stage = Stage(tmp_path, [LOADER, picky], findings, decisions)
    assert attempted(stage) == ["faster-loader", "picky"]
    assert stage.run().verdicts[1].predicted_ns == 3_000_000


def test_edits_for_several_findings_are_tried_together(tmp_path: Path) -> None:
    def by_rule(request: Request) -> Edits | None:
        old, new = {"a": ("loss = 2", "loss = 20"), "b": ("model = 3", "model = 30")}[request.finding.rule]
        (path,) = request.sources
        text = request.sources[path]
        return Edits({path: text.replace(old, new)}, f"{old} becomes {new}") if new not in text else None

    both = fixer("both", by_rule)
    stage = Stage(tmp_path, [both], [finding("a", 4, "both"), finding("b", 3, "both")], {"both": Decision.KEPT})
    (verdict,) = stage.run().verdicts
    patched = SOURCE.replace("loss = 2", "loss = 20").replace("model = 3", "model = 30")
    assert stage.bench.attempts == [("both", SOURCE, patched)]
    assert verdict.predicted_ns == 7_000_000


def test_where_time_is_short_what_is_saved_per_second_of_a_trial_decides(tmp_path: Path) -> None:
    long = fixer("trains", replacing("model = 3", "model = 30"), Gate.TRAINING)
    findings = [finding("a", 9, "trains"), finding("b", 1, "no-item")]
    kept = {"trains": Decision.KEPT, "no-item": Decision.KEPT}

    def order(budget: Deadline, longer_ns: int) -> list[str]:
        stage = Stage(tmp_path, [long, ITEM], findings, kept, budget, allow=frozenset(Gate))
        stage.bench.trial_takes_ns = stage.bench.check_takes_ns = 10
        stage.bench.training_takes_ns = longer_ns
        stage.run()
        return [name for name, _, _ in stage.bench.attempts]

    assert order(Deadline(), 10) == ["no-item", "trains"]
    assert order(Deadline(1_000, lambda: 0), 10) == ["trains", "no-item"]
    assert order(Deadline(1_000, lambda: 0), 200) == ["no-item", "trains"]


class TightBench(FakeBench):
    """A trial of one fix has time at best, one of several may be cut short."""

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        longest_ns = {TOGETHER: 40, "rival": 6}.get(plan.fixer.name, 22)
        return longest_ns // 2 if at_best else longest_ns

    def check_ns(self) -> int:
        return 1


def tight(folder: Path, *shares: float) -> Stage:
    stage = together(folder, *[LOADER, ITEM, MODEL][: len(shares)], budget=Deadline(20, clock=lambda: 0))
    stage.findings = [
        replace(one, share=share, recoverable_ns=round(share * 1e9))
        for one, share in zip(stage.findings, shares, strict=True)
    ]
    stage.bench = TightBench(stage.program, stage.decisions)
    return stage


def test_only_the_trial_that_begins_is_told_to_be_at_risk(tmp_path: Path) -> None:
    """One fix saves more for its time than all of them, which may be cut short too."""
    stage = tight(tmp_path, 0.09, 0.02, 0.01)
    stage.run()
    told = [event.phase for event in stage.events if isinstance(event, PhaseChanged) and "cut short" in event.phase]
    assert stage.bench.attempts[0][0] == "faster-loader"
    assert told[0] == "trying faster-loader although it may be cut short"
    assert len(told) == len(stage.bench.attempts)


def test_a_fix_that_has_no_trial_of_its_own_takes_none_from_the_others(tmp_path: Path) -> None:
    """What promises too little to be at risk by itself is tried with the others, whose sum is worth it."""
    stage = tight(tmp_path, 0.045, 0.044, 0.043)
    outcome = stage.run()
    assert [name for name, *_ in stage.bench.attempts] == [TOGETHER]
    assert {verdict.decision for verdict in outcome.verdicts} == {Decision.KEPT}


@pytest.mark.parametrize(("conflicts", "first"), [((), "rival"), (("faster-loader",), TOGETHER)])
def test_one_that_saves_more_for_its_time_goes_before_all_unless_it_excludes_one_that_promises_more(
    tmp_path: Path, conflicts: tuple[str, ...], first: str
) -> None:
    leak = replace(finding("leak", 8, "rival"), short_of_memory=True)
    rival = fixer("rival", replacing("import torch\n", "import torch  # less\n"), conflicts=conflicts)
    stage = together(tmp_path, LOADER, ITEM, MODEL, rival, budget=Deadline(1000, clock=lambda: 0))
    stage.findings = [*stage.findings[:3], leak]
    stage.bench = TightBench(stage.program, stage.decisions)
    stage.run()
    assert stage.bench.attempts[0][0] == first
