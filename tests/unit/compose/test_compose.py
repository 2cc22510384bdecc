"""Which fixes are tried, in what order, on top of what, and what is told: on a bench whose outcomes are made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, SOURCE, Stage, finding, fixer, replacing

from diagnose import compose
from diagnose.compose.stack.run_context import knowledge
from diagnose.fixer import Advice, Edits, Request
from diagnose.model import (
    TOGETHER,
    Accounting,
    Confidence,
    Decision,
    Diagnosis,
    Gate,
    Interval,
    Scalar,
    Site,
    Steps,
    Verdict,
)
from diagnose.program import Program, patch
from diagnose.session import PhaseChanged, VerdictReached, fold
from diagnose.trace import Trace
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")


def test_each_fix_is_tried_on_top_of_those_already_kept(tmp_path: Path) -> None:
    kept = {"faster-loader": Decision.KEPT, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")], kept)
    outcome = stage.run()
    first, second = SOURCE.replace("= 1", "= 10"), SOURCE.replace("= 1", "= 10").replace("= 2", "= 20")
    assert stage.bench.attempts == [("faster-loader", SOURCE, first), ("no-item", first, second)]
    assert outcome.patch is not None
    (change,) = outcome.patch.changes
    assert change.after == second.encode()
    assert (tmp_path / "train.py").read_text() == SOURCE


def test_a_fix_that_was_not_kept_leaves_the_next_one_the_original(tmp_path: Path) -> None:
    decisions = {"faster-loader": Decision.NO_CHANGE, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")], decisions)
    outcome = stage.run()
    assert [baseline for _, baseline, _ in stage.bench.attempts] == [SOURCE, SOURCE]
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.NO_CHANGE, Decision.KEPT]
    assert outcome.patch is not None
    assert "loader = 10" not in outcome.patch.text


def test_without_a_kept_fix_there_is_no_patch_and_no_final_figure(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.SLOWER})
    outcome = stage.run()
    assert outcome.patch is None
    assert outcome.final is None


def test_the_journal_tells_trial_verdict_patch_and_final_figure(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    outcome = stage.run()
    state = fold(stage.events)
    (trial,) = state.trials
    assert trial.verdict == outcome.verdicts[0]
    assert trial.started.diff == trial.verdict.diff == outcome.verdicts[0].diff != ""
    assert trial.blocks[0].saving == 0.5
    assert state.patch is not None
    assert outcome.patch is not None
    assert state.patch.diff == outcome.patch.text
    assert state.final is not None
    assert (state.final.original_ns, state.final.patched_ns, state.final.runs) == (20_000_000, 10_000_000, 2)
    assert compose.summary(outcome) == "1 of 1 fix kept, 50 % of the step saved"


def test_where_no_fixer_had_anything_none_of_none_is_not_counted() -> None:
    assert compose.summary(compose.Outcome((), None)) == "no fixer had anything to try"


def test_advice_is_no_fix_that_was_not_kept() -> None:
    advice = Verdict("by-hand", Decision.ADVICE, "pass it yourself")
    lost = Verdict("lost", Decision.SLOWER, "slower")
    assert compose.summary(compose.Outcome((advice,), None)) == "no fixer had anything to try; 1 left to you"
    assert compose.summary(compose.Outcome((advice, lost), None)) == "0 of 1 fix kept; 1 left to you"


def test_the_predicted_saving_stands_beside_the_measured_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    (verdict,) = stage.run().verdicts
    assert (verdict.predicted_ns, verdict.prediction, verdict.saving_ns) == (9_000_000, Confidence.MEASURED, 1)
    assert verdict.where[0].line == 3


def test_advice_is_told_without_a_trial(tmp_path: Path) -> None:
    by_hand = fixer("by-hand", lambda _request: Advice("move the call yourself"))
    stage = Stage(tmp_path, [by_hand], [finding("a", 9, "by-hand")])
    (verdict,) = stage.run().verdicts
    assert (verdict.decision, verdict.summary) == (Decision.ADVICE, "move the call yourself")
    assert stage.bench.attempts == []


def test_a_fixer_with_nothing_to_change_is_told_of_once_and_promises_nothing(tmp_path: Path) -> None:
    """A finding names it, and whoever reads that waits to hear of it."""
    idle = fixer("idle", lambda _request: None)
    findings = [finding("a", 9, "idle", "no-item"), finding("b", 3, "idle")]
    stage = Stage(tmp_path, [idle, ITEM], findings, {"no-item": Decision.KEPT})
    told = {verdict.fixer: verdict for verdict in stage.run().verdicts}
    assert (told["idle"].decision, told["idle"].predicted_ns) == (Decision.NOT_TRIED, None)
    assert told["idle"].summary == "nothing to change in the program as it stands"
    assert told["no-item"].decision is Decision.KEPT
    reached = [event.verdict.fixer for event in stage.events if isinstance(event, VerdictReached)]
    assert reached.count("idle") == 1


def test_a_fixer_that_has_no_edit_for_one_finding_is_asked_again_for_the_next(tmp_path: Path) -> None:
    picky = fixer("picky", lambda request: None if request.finding.rule == "a" else ITEM.rewrite(request))
    findings = [finding("a", 9, "picky"), finding("b", 3, "picky")]
    (verdict,) = Stage(tmp_path, [picky], findings, {"picky": Decision.KEPT}).run().verdicts
    assert verdict.decision is Decision.KEPT


def test_what_changes_the_training_is_tried_only_when_allowed(tmp_path: Path) -> None:
    bold = fixer("bfloat16", replacing("model = 3", "model = 30"), Gate.TRAINING)
    findings = [finding("a", 9, "bfloat16")]
    (verdict,) = Stage(tmp_path, [bold], findings).run().verdicts
    assert verdict.decision is Decision.NOT_TRIED
    assert "model = 30" in verdict.diff
    allowed = Stage(tmp_path, [bold], findings, {"bfloat16": Decision.UNVERIFIED}, allow=frozenset(Gate))
    assert allowed.run().verdicts[0].decision is Decision.UNVERIFIED


def test_an_answer_may_promise_less_or_more_than_its_fixer_does(tmp_path: Path) -> None:
    def edit(request: Request) -> Edits:
        gate = Gate.TRAINING if request.setting["size"] == 2 else None
        return Edits({path: text + f"# {request.setting}\n" for path, text in request.sources.items()}, "more", gate)

    two = fixer("microbatch", edit, settings=lambda _request: ({"size": 2}, {"size": 4}))
    stage = Stage(tmp_path, [two], [finding("a", 9, "microbatch")], {"microbatch": Decision.KEPT})
    (verdict,) = stage.run().verdicts
    assert verdict.setting == {"size": 4}
    only = fixer("microbatch", edit, settings=lambda _request: ({"size": 2},))
    stage = Stage(tmp_path, [only], [finding("a", 9, "microbatch")], {"microbatch": Decision.KEPT})
    assert stage.run().verdicts[0].decision is Decision.NOT_TRIED


def test_what_the_budget_does_not_reach_is_said_to_be_not_tried(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], budget=Deadline(at_ns=0))
    (verdict,) = stage.run().verdicts
    assert (verdict.decision, verdict.summary) == (Decision.NOT_TRIED, "the budget ran out")


def test_the_first_setting_of_a_knob_is_kept_at_once_and_the_others_compared_with_it_in_the_end(tmp_path: Path) -> None:
    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"num_workers": 2}, {"num_workers": 4}]

    knob = fixer("workers", replacing("loader = 1", "loader = "), settings=settings)
    findings = [finding("a", 9, "workers"), finding("b", 1, "no-item")]
    stage = Stage(tmp_path, [knob, ITEM], findings, dict.fromkeys(("workers", "no-item"), Decision.KEPT))
    stage.bench.best_setting = 1
    verdicts = {verdict.fixer: verdict for verdict in stage.run().verdicts}
    tried = [patched for name, _, patched in stage.bench.attempts if name == "workers"]
    assert tried == [SOURCE.replace("loader = 1", "loader = 2")]
    assert stage.bench.scales == [True]
    said = "num_workers=4: 10 % less time per step than with num_workers=2"
    assert verdicts["workers"].setting == {"num_workers": 4}
    assert f"; then {said}" in verdicts["workers"].summary
    kinds = [
        event.verdict.fixer if isinstance(event, VerdictReached) else event.detail
        for event in stage.events
        if isinstance(event, VerdictReached | PhaseChanged)
    ]
    assert kinds.index("workers") < kinds.index("no-item") < kinds.index(said)


def test_a_setting_that_is_kept_for_its_memory_is_not_exchanged_for_a_faster_one(tmp_path: Path) -> None:
    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"num_workers": 2}, {"num_workers": 4}]

    knob = fixer("workers", replacing("loader = 1", "loader = "), settings=settings)
    short = replace(finding("a", 9, "workers"), short_of_memory=True)
    stage = Stage(tmp_path, [knob], [short], {"workers": Decision.NO_CHANGE})
    stage.bench.best_setting, stage.bench.saving, stage.bench.peak_bytes = 1, Interval(0.0, 0.0, 0.0), (100, 50)
    (verdict,) = stage.run().verdicts
    assert (verdict.decision, verdict.setting) == (Decision.KEPT, {"num_workers": 2})
    assert stage.bench.scales == []


def test_numbers_are_held_against_the_original_while_only_bitwise_fixes_are_kept(tmp_path: Path) -> None:
    rounding = fixer("fused", replacing("model = 3", "model = 30"), Gate.ROUNDING)
    fixers = [LOADER, rounding, ITEM]
    findings = [finding(one.name, 9 - at, one.name) for at, one in enumerate(fixers)]
    stage = Stage(tmp_path, fixers, findings, {one.name: Decision.KEPT for one in fixers})
    stage.run()
    alone = [at for at, (name, _, _) in enumerate(stage.bench.attempts) if name != TOGETHER]
    assert [stage.bench.held_against[at] for at in alone] == [SOURCE, SOURCE, stage.bench.attempts[alone[2]][1]]


def test_a_fixer_is_tried_once_however_many_findings_name_it(tmp_path: Path) -> None:
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "faster-loader")]
    stage = Stage(tmp_path, [LOADER], findings, {"faster-loader": Decision.NO_CHANGE})
    assert len(stage.run().verdicts) == 1


def test_fixers_see_the_users_own_files_that_the_run_touched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "data.py").write_text("x = 1\n")
    program = Program.parse(["train.py"], cwd=tmp_path)
    data = str(tmp_path / "data.py")
    site = Site("DataLoader", data, 1)
    traces = [Trace("rank0", sites=(site,)), Trace("rank1", sites=(site, Site("optimizer", "/usr/lib/x.py", 1)))]
    diagnosis = Diagnosis(1, (), 2, None, Steps(0, None), Accounting())
    known = knowledge(program, diagnosis, traces)
    assert known.sources == {str(program.entry): SOURCE, data: "x = 1\n"}
    assert len(known.sites) == 2


def test_a_fixer_that_is_itself_broken_is_told_and_hides_no_other(tmp_path: Path) -> None:
    broken = fixer("broken", lambda request: Edits({"train.py": request.sources["nowhere"]}, ""))
    findings = [finding("a", 9, "broken"), finding("b", 3, "no-item")]
    verdicts = Stage(tmp_path, [broken, ITEM], findings, {"no-item": Decision.KEPT}).run().verdicts
    assert [verdict.decision for verdict in verdicts] == [Decision.FAILED, Decision.KEPT]
    assert verdicts[0].summary == "the fixer itself failed: KeyError('nowhere')"


def test_the_merged_diff_applies_to_the_users_files(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    outcome = stage.run()
    assert outcome.patch is not None
    patch.check(outcome.patch)


def test_nothing_is_begun_that_cannot_end_in_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 1, "faster-loader")], budget=Deadline(6, clock=lambda: 0))
    stage.bench.trial_takes_ns, stage.bench.final_takes_ns = 7, 4
    (verdict,) = stage.run().verdicts
    assert stage.bench.attempts == []
    assert (verdict.decision, verdict.summary) == (
        Decision.NOT_TRIED,
        "the budget leaves only 2 ns before the last runs (this would take about 7 ns, the last runs 4 ns)",
    )
    short = Stage(tmp_path, [LOADER], [finding("a", 1, "faster-loader")], budget=Deadline(6, clock=lambda: 0))
    short.bench.trial_takes_ns, short.bench.final_takes_ns = 7, 40
    assert short.run().verdicts[0].summary.startswith("the budget leaves no time before the last runs")


def test_the_first_trial_alone_is_begun_where_the_last_runs_have_no_time(tmp_path: Path) -> None:
    findings = [finding("a", 2, "faster-loader"), finding("b", 1, "no-item")]
    decisions = {"faster-loader": Decision.NO_CHANGE}
    stage = Stage(tmp_path, [LOADER, ITEM], findings, decisions, budget=Deadline(10, clock=lambda: 0))
    stage.bench.trial_takes_ns, stage.bench.final_takes_ns = 7, 4
    tried, left = stage.run().verdicts
    assert (tried.fixer, tried.decision) == ("faster-loader", Decision.NO_CHANGE)
    assert (left.fixer, left.summary) == (
        "no-item",
        "the budget leaves only 6 ns before the last runs (this would take about 7 ns, the last runs 4 ns)",
    )


def test_a_short_budget_leaves_a_knob_fewer_settings(tmp_path: Path) -> None:
    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"num_workers": 1 << power} for power in range(5)]

    knob = fixer("workers", replacing("loader = 1", "loader = "), settings=settings)
    stage = Stage(
        tmp_path,
        [knob],
        [finding("a", 9, "workers")],
        {"workers": Decision.KEPT},
        budget=Deadline(10, clock=lambda: 0),
    )
    stage.bench.trial_takes_ns, stage.bench.best_setting = 3, 2
    assert stage.run().verdicts[0].setting == {"num_workers": 16}
    assert stage.bench.scales == [True]


@pytest.mark.parametrize(
    ("first", "next_best", "tried"),
    [
        (Decision.NO_CHANGE, Decision.KEPT, ["safe", "third"]),
        (Decision.FAILED, Decision.CHANGES_NUMBERS, ["safe", "third", "fast"]),
        (Decision.SLOWER, Decision.NO_CHANGE, ["safe", "third"]),
        (Decision.UNVERIFIED, Decision.KEPT, ["safe"]),
    ],
)
def test_where_the_first_setting_does_not_hold_the_best_of_the_others_has_a_trial(
    tmp_path: Path, first: Decision, next_best: Decision, tried: list[str]
) -> None:
    """Another mode of a compiler may pay, or not break down; what could not be verified stays so in all of them."""

    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"mode": "safe"}, {"mode": "fast"}, {"mode": "third"}]

    modes = fixer("modes", replacing("model = 3", "model = compiled:"), settings=settings)
    stage = Stage(tmp_path, [modes], [finding("a", 9, "modes")], {"modes": Decision.KEPT})
    stage.bench.best_setting, stage.bench.by_text = 1, {":safe": first, ":third": next_best}
    (verdict,) = stage.run().verdicts
    assert [patched.rpartition(":")[2].strip() for _, _, patched in stage.bench.attempts] == tried
    decisions = {"safe": first, "third": next_best, "fast": Decision.KEPT}
    assert (verdict.decision, verdict.setting) == (decisions[tried[-1]], {"mode": tried[-1]})
    assert stage.bench.scales == [False] * (len(tried) > 1)
