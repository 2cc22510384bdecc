"""What becomes of a kept fix that a later one has made needless, and of a stack whose numbers do not hold together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from composing import ITEM, LOADER, SOURCE, Stage, finding, fixer, replacing

from diagnose.compose.search.final_check import interaction
from diagnose.fixer import Answer, Edits, Fixer, Request
from diagnose.model import Decision, Gate, Interval, Verdict
from diagnose.report.wording.phrases import interplay
from diagnose.session import FinalMeasured, PatchAccepted, TrialStarted, Warned, fold
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")

MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"))
LONGER = fixer("imports-more", replacing("import torch\n", "import os\nimport torch\n"))


def stage(folder: Path, fixers: Sequence[Fixer], left_out: Mapping[str, Decision] | None = None) -> Stage:
    """All fixers are kept in their own trials, in the order given."""
    findings = [finding(f"rule {one.name}", 9 - number, one.name) for number, one in enumerate(fixers)]
    made = Stage(folder, fixers, findings, {one.name: Decision.KEPT for one in fixers})
    made.bench.left_out = left_out or {}
    return made


def applied(text: str, *fixers: Fixer) -> str:
    """The source with these fixes in it."""
    for one in fixers:
        answer = one.rewrite(Request(finding("any", 1), {"train.py": text}))
        assert isinstance(answer, Edits)
        text = answer.files["train.py"]
    return text


def test_each_kept_fix_but_the_last_is_tried_against_the_stack_without_it(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM, MODEL])
    made.run()
    whole = applied(SOURCE, LOADER, ITEM, MODEL)
    assert made.bench.checks == [
        ("faster-loader", applied(SOURCE, ITEM, MODEL), whole),
        ("no-item", applied(SOURCE, LOADER, MODEL), whole),
    ]


def test_a_single_kept_fix_needs_no_check(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER])
    made.run()
    assert made.bench.checks == []


def test_a_fix_that_saves_nothing_on_top_of_the_others_is_taken_out_and_told(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM, MODEL], {"faster-loader": Decision.NO_CHANGE})
    outcome = made.run()
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.NO_CHANGE, Decision.KEPT, Decision.KEPT]
    dropped = outcome.verdicts[0]
    assert dropped.summary == (
        "no longer needed since no-item and narrow-model were kept (leave-one-out check): as checked"
    )
    assert (dropped.saving_ns, dropped.predicted_ns, dropped.mechanism) == (2, None, None)
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == applied(SOURCE, ITEM, MODEL).encode()
    # The next check and the last runs are those of what is left.
    assert made.bench.checks[1] == ("no-item", applied(SOURCE, MODEL), applied(SOURCE, ITEM, MODEL))
    assert made.bench.gates[0][2] == applied(SOURCE, ITEM, MODEL)


def test_a_fix_that_is_still_needed_keeps_its_own_figures_and_gains_a_sentence(tmp_path: Path) -> None:
    verdict = stage(tmp_path, [LOADER, ITEM]).run().verdicts[0]
    assert (verdict.decision, verdict.saving_ns) == (Decision.KEPT, 1)
    assert verdict.summary == "as told; leave-one-out check: still needed beside no-item, as checked"


@pytest.mark.parametrize("unclear", [Decision.FAILED, Decision.NOT_TRIED])
def test_a_check_that_cannot_tell_leaves_the_fix_in_and_says_so(tmp_path: Path, unclear: Decision) -> None:
    made = stage(tmp_path, [LOADER, ITEM], {"faster-loader": unclear})
    outcome = made.run()
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.KEPT, Decision.KEPT]
    assert "could not tell whether it is still needed" in outcome.verdicts[0].summary
    (warning,) = [event.message for event in made.events if isinstance(event, Warned)]
    assert warning.startswith("faster-loader stays")


def test_a_check_that_the_budget_does_not_reach_is_told(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM])
    made.budget = Deadline(at_ns=9, clock=lambda: 0)
    made.bench.check_takes_ns, made.bench.final_takes_ns = 5, 5
    outcome = made.run()
    assert made.bench.checks == []
    assert outcome.patch is not None
    (warning,) = [event.message for event in made.events if isinstance(event, Warned)]
    assert warning == (
        "no leave-one-out check of faster-loader, which stays on its own trial's word: "
        "the budget leaves only 4 ns before the last runs (this would take about 5 ns, the last runs 5 ns)"
    )


def test_several_that_the_budget_does_not_reach_are_told_in_one_sentence(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM, MODEL])
    made.budget = Deadline(at_ns=9, clock=lambda: 0)
    made.bench.check_takes_ns, made.bench.final_takes_ns = 5, 5
    made.run()
    (warning,) = [event.message for event in made.events if isinstance(event, Warned)]
    assert warning.startswith(
        "no leave-one-out check of faster-loader and no-item, which stay on their own trial's word: the budget leaves"
    )


def test_the_journal_tells_the_check_as_a_trial_and_its_verdict_is_the_last_word(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM], {"faster-loader": Decision.SLOWER})
    outcome = made.run()
    state = fold(made.events)
    assert state.verdicts == outcome.verdicts
    assert [verdict.fixer for verdict in state.verdicts] == ["faster-loader", "no-item"]
    first, _, check = state.trials
    assert first.verdict is not None
    assert first.verdict.decision is Decision.KEPT
    assert check.started.summary == "leave-one-out check: no-item without it against all together"
    assert "+loader = 10" in check.started.diff
    assert "loss = 20" in check.started.diff  # context: it is there on both sides
    assert (len(check.blocks), check.verdict) == (1, state.verdicts[0])
    assert state.patch is not None
    assert state.patch.fixers == ["no-item"]
    assert "loader = 10" not in state.patch.diff


def test_later_fixes_are_made_again_at_the_lines_where_their_places_are_then(tmp_path: Path) -> None:
    seen: list[tuple[int, str | None]] = []

    def rewrite(request: Request) -> Answer:
        (place,) = request.finding.where
        seen.append((place.line, place.code))
        return ITEM.rewrite(request)

    watching = fixer("no-item", rewrite)
    made = stage(tmp_path, [LONGER, watching], {"imports-more": Decision.NO_CHANGE})
    outcome = made.run()
    assert seen == [(4, "loss = 2"), (3, "loss = 2")]
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == applied(SOURCE, ITEM).encode()


def test_a_fix_on_which_a_later_one_builds_stays_without_a_check(tmp_path: Path) -> None:
    def builds(request: Request) -> Answer:
        (text,) = request.sources.values()
        return replacing("loader = 10", "loader = 11")(request) if "loader = 10" in text else None

    def breaks(request: Request) -> Answer:
        (text,) = request.sources.values()
        text.index("loader = 10")
        return replacing("loader = 10", "loader = 11")(request)

    for number, rewrite in enumerate((builds, breaks)):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = stage(folder, [LOADER, fixer("builds-on-it", rewrite)])
        outcome = made.run()
        assert made.bench.checks == []
        assert [verdict.decision for verdict in outcome.verdicts] == [Decision.KEPT, Decision.KEPT]


def test_the_gate_of_the_whole_stack_is_that_of_its_boldest_fix(tmp_path: Path) -> None:
    rounding = fixer("fused", replacing("model = 3", "model = 30"), Gate.ROUNDING, rounds_to="tf32")
    bitwise, mixed = stage(tmp_path, [LOADER, ITEM]), stage(tmp_path, [LOADER, rounding])
    outcome = bitwise.run()
    mixed.run()
    assert bitwise.bench.gates == [(Gate.BITWISE, SOURCE, applied(SOURCE, LOADER, ITEM), None)]
    assert mixed.bench.gates == [(Gate.ROUNDING, SOURCE, applied(SOURCE, LOADER, rounding), "tf32")]
    assert outcome.final is not None
    assert outcome.final.gate is not None
    assert outcome.final.gate.passed is True


def test_a_stack_whose_numbers_change_is_not_kept_and_every_fix_says_why(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM])
    made.bench.gate_passes = False
    outcome = made.run()
    assert outcome.patch is None
    assert outcome.final is None
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.CHANGES_NUMBERS] * 2
    assert outcome.verdicts[0].summary == (
        "not kept beside no-item: with all kept fixes together the numbers change: as gated"
    )
    state = fold(made.events)
    assert state.verdicts == outcome.verdicts
    assert state.patch == PatchAccepted(diff="", fixers=[], at_ns=state.patch.at_ns if state.patch else 0)
    assert not any(isinstance(event, FinalMeasured) for event in made.events)
    assert all(trial.verdict is not None for trial in state.trials)


def test_a_stack_whose_numbers_could_not_be_checked_is_kept_with_a_warning(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM])
    made.bench.gate_passes = None
    outcome = made.run()
    assert outcome.patch is not None
    (warning,) = [event.message for event in made.events if isinstance(event, Warned)]
    assert warning == "the numbers of all kept fixes together could not be checked: as gated"


def test_nothing_is_taken_out_that_leaves_no_time_for_the_numbers_of_the_others(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM], {"faster-loader": Decision.NO_CHANGE})
    now = [0]
    made.budget = Deadline(at_ns=100, clock=lambda: now[0])
    made.bench.final_takes_ns, made.bench.numbers_take_ns = 10, 40
    made.bench.on_check = lambda: now.__setitem__(0, 51)  # it took longer than was expected
    outcome = made.run()
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.KEPT, Decision.KEPT]
    assert outcome.verdicts[0].summary == "as told; leave-one-out check: as checked"
    (warning,) = [event.message for event in made.events if isinstance(event, Warned)]
    assert warning.startswith("faster-loader stays, though the leave-one-out check says as checked: the budget leaves")
    assert made.bench.gates[-1][2] == applied(SOURCE, LOADER, ITEM)


def test_a_drop_is_taken_back_where_the_numbers_of_the_others_could_not_be_checked(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM], {"faster-loader": Decision.NO_CHANGE})
    made.bench.gate_by_text = {"loader = 1\nloss = 20": None}
    outcome = made.run()
    assert [verdict.decision for verdict in outcome.verdicts] == [Decision.KEPT, Decision.KEPT]
    assert outcome.verdicts[0].summary.startswith(
        "kept: without it the numbers of the others could not be checked (as gated), with it they hold; no longer"
    )
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == applied(SOURCE, LOADER, ITEM).encode()
    assert outcome.final is not None
    assert outcome.final.gate is not None
    assert outcome.final.gate.passed
    accepted = [event.fixers for event in made.events if isinstance(event, PatchAccepted)]
    assert accepted[-1] == ["faster-loader", "no-item"]


def test_a_check_is_announced_before_it_runs(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM])
    made.run()
    started = [event for event in made.events if isinstance(event, TrialStarted)]
    assert [event.predicted_ns for event in started] == [9_000_000, 8_000_000, None]


def test_the_interaction_says_how_far_fixes_save_less_together_than_one_by_one() -> None:
    def kept(saving: float | None) -> Verdict:
        interval = None if saving is None else Interval(saving, saving, saving)
        return Verdict("any", Decision.KEPT, "", saving=interval)

    assert interaction(0.25, [kept(0.5), kept(0.5)]) == pytest.approx(0.0)
    assert interaction(0.5, [kept(0.5), kept(0.5)]) == pytest.approx(math.log(2))
    assert interaction(0.5, [kept(0.5)]) is None
    assert interaction(0.5, [kept(0.5), kept(None)]) is None


def test_the_interaction_stands_beside_the_final_figures(tmp_path: Path) -> None:
    made = stage(tmp_path, [LOADER, ITEM])
    made.bench.saving = Interval(0.25, 0.2, 0.3)
    outcome = made.run()
    assert outcome.final is not None
    # 20 ms become 10 ms, where two trials of 25 % each promised 11.25 ms.
    assert outcome.final.interaction == pytest.approx(math.log(0.5 / 0.5625))
    said = interplay(fold(made.events))
    assert said == "one by one, each on top of those before, the kept fixes were measured to save 44 %"


@pytest.mark.parametrize(("saving", "warned"), [(Interval(0.9, 0.85, 0.95), True), (Interval(0.4, 0.3, 0.5), False)])
def test_less_saved_alone_than_trials_said_is_told(tmp_path: Path, saving: Interval, warned: bool) -> None:
    """The programs alone take 20 and 10 ms."""
    made = stage(tmp_path, [LOADER])
    made.bench.saving = saving
    made.run()
    said = [event.message for event in made.events if isinstance(event, Warned)]
    assert any("alone, the programs differ by 50 % of a step" in words for words in said) is warned
