"""Which fixes are tried, in what order, on top of what, and what is told: on a bench whose outcomes are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from composing import ITEM, LOADER, SOURCE, Stage, finding, fixer, replacing

from diagnose import compose
from diagnose.compose import candidates
from diagnose.compose.knowledge import knowledge
from diagnose.engine import Examination
from diagnose.fixer import Advice, Edits, Request
from diagnose.model import (
    TOGETHER,
    Accounting,
    CannotTell,
    Confidence,
    Decision,
    Diagnosis,
    Finding,
    Gate,
    Interval,
    Scalar,
    Site,
    Steps,
    Verdict,
)
from diagnose.program import Program, patch
from diagnose.session import PhaseChanged, fold
from diagnose.source.moved import LineMap
from diagnose.trace import Trace
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")


def find_next(
    monkeypatch: pytest.MonkeyPatch,
    *findings: Finding,
    cannot_tell: Sequence[CannotTell] = (),
    claimed: Mapping[str, float] | None = None,
    step_ns: int = 10_000_000,
) -> None:
    answer = Diagnosis(1, (), 1, None, Steps(4, step_ns, step_ns), Accounting(), findings, tuple(cannot_tell))
    monkeypatch.setattr(candidates, "open_traces", lambda _paths: [Trace("patched arm")])
    monkeypatch.setattr(candidates, "examine", lambda _traces, _catalogue: Examination(answer, claimed or {}))


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


def test_the_journal_tells_control_trial_verdict_patch_and_final_figure(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    outcome = stage.run()
    state = fold(stage.events)
    assert state.control is not None
    assert state.control.resolution == 0.01
    (trial,) = state.trials
    assert trial.verdict == outcome.verdicts[0]
    assert trial.started.diff == trial.verdict.diff == outcome.verdicts[0].diff != ""
    assert trial.blocks[0].saving == 0.5
    assert state.patch is not None
    assert outcome.patch is not None
    assert state.patch.diff == outcome.patch.text
    assert state.final is not None
    assert (state.final.original_ns, state.final.patched_ns, state.final.runs) == (20_000_000, 10_000_000, 2)
    assert compose.summary(outcome) == "1 of 1 fixes kept, 50 % of the step saved"


def test_where_no_fixer_had_anything_none_of_none_is_not_counted() -> None:
    assert compose.summary(compose.Outcome((), None)) == "no fixer had anything to try"


def test_the_predicted_saving_stands_beside_the_measured_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], {"faster-loader": Decision.KEPT})
    (verdict,) = stage.run().verdicts
    assert (verdict.predicted_ns, verdict.prediction, verdict.saving_ns) == (9_000_000, Confidence.MEASURED, 1)
    assert verdict.where[0].line == 3


def test_advice_is_told_without_a_trial_or_a_control(tmp_path: Path) -> None:
    by_hand = fixer("by-hand", lambda _request: Advice("move the call yourself"))
    stage = Stage(tmp_path, [by_hand], [finding("a", 9, "by-hand")])
    (verdict,) = stage.run().verdicts
    assert (verdict.decision, verdict.summary) == (Decision.ADVICE, "move the call yourself")
    assert stage.bench.copies == {}


def test_a_fixer_with_nothing_to_do_says_nothing(tmp_path: Path) -> None:
    idle = fixer("idle", lambda _request: None)
    assert Stage(tmp_path, [idle], [finding("a", 9, "idle")]).run().verdicts == ()


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


def test_a_program_too_short_to_measure_gets_no_trial(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")])
    stage.bench.runs_control = False
    (verdict,) = stage.run().verdicts
    assert verdict.decision is Decision.NOT_TRIED
    assert verdict.summary == "the program ends before it could be measured"


def test_the_chosen_setting_of_a_knob_gets_the_full_trial(tmp_path: Path) -> None:
    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"num_workers": 1}, {"num_workers": 2}]

    knob = fixer("workers", replacing("loader = 1", "loader = "), settings=settings)
    stage = Stage(tmp_path, [knob], [finding("a", 9, "workers")], {"workers": Decision.KEPT})
    stage.bench.best_setting = 1
    (verdict,) = stage.run().verdicts
    assert verdict.setting == {"num_workers": 2}
    said = [event.detail for event in stage.events if isinstance(event, PhaseChanged)]
    assert "num_workers=2: 10 % less time per step than with num_workers=1" in said
    assert stage.bench.attempts[0][2] == SOURCE.replace("loader = 1", "loader = 2")


def test_numbers_are_held_against_the_original_while_only_bitwise_fixes_are_kept(tmp_path: Path) -> None:
    rounding = fixer("fused", replacing("model = 3", "model = 30"), Gate.ROUNDING)
    fixers = [LOADER, rounding, ITEM]
    findings = [finding(one.name, 9 - at, one.name) for at, one in enumerate(fixers)]
    stage = Stage(tmp_path, fixers, findings, {one.name: Decision.KEPT for one in fixers})
    stage.run()
    alone = [at for at, (name, _, _) in enumerate(stage.bench.attempts) if name != TOGETHER]
    assert [stage.bench.numbers[at] for at in alone] == [SOURCE, SOURCE, stage.bench.attempts[alone[2]][1]]


def test_a_fixer_is_tried_once_however_many_findings_name_it(tmp_path: Path) -> None:
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "faster-loader")]
    stage = Stage(tmp_path, [LOADER], findings, {"faster-loader": Decision.NO_CHANGE})
    assert len(stage.run().verdicts) == 1


def test_findings_of_the_patched_program_decide_what_is_tried_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch, finding("new", 2, "faster-loader", "narrow-model"), finding("b", 1, "no-item"))
    narrow = fixer("narrow-model", replacing("model = 3", "model = 30"))
    decisions = dict.fromkeys(("faster-loader", "no-item", "narrow-model"), Decision.KEPT)
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(tmp_path, [LOADER, ITEM, narrow], findings, decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "narrow-model", "no-item"]


def test_an_ailment_that_went_away_with_a_kept_fix_is_not_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch)
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    stage = Stage(tmp_path, [LOADER, ITEM], findings, {"faster-loader": Decision.KEPT})
    verdict = stage.run().verdicts[1]
    assert verdict.decision is Decision.NOT_TRIED
    assert verdict.summary == "b is gone since faster-loader was kept"


def test_what_ends_the_run_is_mended_though_no_step_gets_shorter(tmp_path: Path) -> None:
    deadly = replace(finding("leaking-memory", 0, "faster-loader"), ends_run=True)
    stage = Stage(tmp_path, [LOADER], [deadly], {"faster-loader": Decision.NO_CHANGE})
    (verdict,) = stage.run().verdicts
    assert verdict.decision is Decision.KEPT
    assert verdict.summary.startswith("the step takes as long as before, but the run would end of leaking-memory")
    harmless = Stage(tmp_path, [LOADER], [replace(deadly, ends_run=False)], {"faster-loader": Decision.NO_CHANGE})
    assert harmless.run().verdicts[0].decision is Decision.NO_CHANGE


def short_of_memory(folder: Path, peak_bytes: tuple[int, int] | None, saving: float = 0.0) -> Verdict:
    short = replace(finding("memory-pressure", 0, "faster-loader"), short_of_memory=True)
    stage = Stage(folder, [LOADER], [short], {"faster-loader": Decision.NO_CHANGE})
    stage.bench.saving = Interval(saving, saving - 0.02, saving + 0.02)
    stage.bench.peak_bytes = peak_bytes
    return stage.run().verdicts[0]


def test_where_memory_is_short_a_fix_is_kept_for_what_it_frees(tmp_path: Path) -> None:
    verdict = short_of_memory(tmp_path, (80 << 30, 60 << 30))
    assert verdict.decision is Decision.KEPT
    assert "but memory is short, and its peak falls from 80.0 GiB to 60.0 GiB" in verdict.summary


@pytest.mark.parametrize(
    ("peak_bytes", "saving"), [((80 << 30, 78 << 30), 0.0), ((80 << 30, 60 << 30), -0.03), (None, 0.0)]
)
def test_little_memory_slower_steps_or_an_unknown_peak_are_no_reason(
    tmp_path: Path, peak_bytes: tuple[int, int] | None, saving: float
) -> None:
    assert short_of_memory(tmp_path, peak_bytes, saving).decision is Decision.NO_CHANGE


@pytest.mark.parametrize(("short", "checked"), [(True, []), (False, ["faster-loader"])])
def test_what_frees_memory_is_not_left_out_for_saving_no_time(tmp_path: Path, short: bool, checked: list[str]) -> None:
    first = replace(finding("memory-pressure", 0, "faster-loader"), short_of_memory=short)
    stage = Stage(
        tmp_path,
        [LOADER, ITEM],
        [first, finding("b", 0, "no-item")],
        dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT),
    )
    stage.run()
    assert [name for name, _, _ in stage.bench.checks] == checked


def test_fixes_that_change_the_training_come_after_all_others(tmp_path: Path) -> None:
    small = fixer("no-item", replacing("item", "none"))
    large = fixer("faster-loader", replacing("slow", "fast"), gate=Gate.TRAINING)
    findings = [finding("a", 9, "faster-loader"), finding("b", 1, "no-item")]
    verdicts = dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT)
    stage = Stage(tmp_path, [large, small], findings, verdicts, allow=frozenset(Gate))
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["no-item", "faster-loader"]


def test_what_completes_a_kept_fix_is_tried_though_its_ailment_went_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch)
    more = fixer("no-item", replacing("item", "none"), completes=("faster-loader",))
    findings = [finding("a", 9, "faster-loader", "no-item")]
    stage = Stage(tmp_path, [LOADER, more], findings, dict.fromkeys(("faster-loader", "no-item"), Decision.KEPT))
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


def test_an_ailment_that_only_sank_into_the_noise_of_the_new_window_is_still_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.3 ms were claimed of a step of 20 ms; of the new one, 10 ms long, they would be 3 %.
    find_next(monkeypatch, claimed={"b": 0.006})
    small = replace(finding("b", 1, "no-item"), recoverable_ns=300_000)
    decisions = {"faster-loader": Decision.KEPT, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), small], decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


@pytest.mark.parametrize(
    ("claimed", "predicted_ns", "reason"),
    [
        (0.004, 300_000, "b is gone since faster-loader was kept"),
        (0.006, 99_000, "b is down to less than 1.0 % of a step since faster-loader was kept"),
    ],
)
def test_an_ailment_too_small_to_be_kept_a_fix_for_is_not_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: float, predicted_ns: int, reason: str
) -> None:
    find_next(monkeypatch, claimed={"b": claimed})
    small = replace(finding("b", 1, "no-item"), recoverable_ns=predicted_ns)
    stage = Stage(tmp_path, [LOADER, ITEM], [finding("a", 9, "faster-loader"), small], {"faster-loader": Decision.KEPT})
    verdict = stage.run().verdicts[1]
    assert (verdict.decision, verdict.summary) == (Decision.NOT_TRIED, reason)


def test_an_ailment_that_the_new_window_cannot_judge_is_still_treated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_next(monkeypatch, cannot_tell=[CannotTell("b", "samples")])
    findings = [finding("a", 9, "faster-loader"), finding("b", 3, "no-item")]
    decisions = {"faster-loader": Decision.KEPT, "no-item": Decision.KEPT}
    stage = Stage(tmp_path, [LOADER, ITEM], findings, decisions)
    stage.run()
    assert [name for name, _, _ in stage.bench.attempts] == ["faster-loader", "no-item"]


def test_places_follow_their_lines_through_a_kept_edit(tmp_path: Path) -> None:
    longer = fixer("imports-more", replacing("import torch\n", "import os\nimport torch\n"))
    findings = [finding("a", 9, "imports-more"), finding("b", 3, "no-item", line=3)]
    decisions = {"imports-more": Decision.KEPT, "no-item": Decision.NO_CHANGE}
    second = Stage(tmp_path, [longer, ITEM], findings, decisions).run().verdicts[1]
    assert (second.where[0].line, second.where[0].code) == (4, "loss = 2")


def test_a_line_is_found_again_after_an_edit() -> None:
    lines = LineMap.between({"a.py": "one\ntwo\nthree\n"}, {"a.py": "zero\none\nTWO\nthree\n"})
    assert [lines.line("a.py", line) for line in (1, 2, 3)] == [2, 3, 4]
    assert lines.line("b.py", 7) == 7
    assert lines.line("a.py", 99) == 99


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


def test_nothing_is_begun_that_cannot_end_before_the_last_runs(tmp_path: Path) -> None:
    stage = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], budget=Deadline(10, clock=lambda: 0))
    stage.bench.trial_takes_ns, stage.bench.final_takes_ns = 7, 4
    (verdict,) = stage.run().verdicts
    assert stage.bench.attempts == []
    assert (verdict.decision, verdict.summary) == (
        Decision.NOT_TRIED,
        "the budget leaves only 6 ns before the last runs (this would take about 7 ns)",
    )
    short = Stage(tmp_path, [LOADER], [finding("a", 9, "faster-loader")], budget=Deadline(10, clock=lambda: 0))
    short.bench.trial_takes_ns, short.bench.final_takes_ns = 7, 40
    assert short.run().verdicts[0].summary.startswith("the budget leaves no time before the last runs")


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
    ("breaks", "tried"),
    [
        (Decision.CHANGES_NUMBERS, ["model = compiled:fast", "model = compiled:safe"]),
        (Decision.FAILED, ["model = compiled:fast", "model = compiled:safe"]),
        (Decision.NO_CHANGE, ["model = compiled:fast"]),
    ],
)
def test_where_the_chosen_setting_breaks_down_the_next_best_has_a_trial(
    tmp_path: Path, breaks: Decision, tried: list[str]
) -> None:
    def settings(_request: Request) -> list[Mapping[str, Scalar]]:
        return [{"mode": "safe"}, {"mode": "fast"}, {"mode": "third"}]

    modes = fixer("modes", replacing("model = 3", "model = compiled:"), settings=settings)
    stage = Stage(tmp_path, [modes], [finding("a", 9, "modes")], {"modes": Decision.KEPT})
    stage.bench.best_setting, stage.bench.by_text = 1, {":fast": breaks}
    (verdict,) = stage.run().verdicts
    assert [patched.splitlines()[-1] for _, _, patched in stage.bench.attempts] == tried
    assert verdict.decision is (Decision.KEPT if len(tried) == 2 else breaks)
    assert verdict.setting == {"mode": "safe" if len(tried) == 2 else "fast"}
    assert stage.bench.scales == [False]


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
