"""What is asked of each of those that were tried at once: whether it is needed, and whether it changes numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from composing import ALL, ITEM, LOADER, MODEL, SOURCE, Stage, finding, fixer, kept_text, replacing, together

from diagnose.fixer import Answer, Edits, Fixer, Request
from diagnose.model import TOGETHER, Decision, Gate
from diagnose.session import FinalMeasured, TrialStarted, fold
from diagnose.trial.schedule import Deadline

pytestmark = pytest.mark.usefixtures("nothing_new")


def test_the_smallest_promise_is_checked_first(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    assert [name for name, _, _ in made.bench.checks] == ["narrow-model", "no-item", "faster-loader"]


def test_what_shares_its_ailment_with_most_others_is_checked_before_smaller_promises(tmp_path: Path) -> None:
    findings = [finding("shared", 9, "faster-loader", "no-item"), finding("own", 2, "narrow-model")]
    decided = dict.fromkeys((TOGETHER, "faster-loader", "no-item", "narrow-model"), Decision.KEPT)
    made = Stage(tmp_path, (LOADER, ITEM, MODEL), findings, decided)
    made.run()
    assert [name for name, _, _ in made.bench.checks] == ["faster-loader", "no-item", "narrow-model"]


def test_each_of_them_has_a_verdict_with_its_own_figures_and_the_gate_of_all(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    verdicts = made.run().verdicts
    assert [verdict.fixer for verdict in verdicts] == ["faster-loader", "no-item", "narrow-model"]
    for verdict in verdicts:
        assert verdict.decision is Decision.KEPT
        assert verdict.saving is not None
        assert verdict.saving.estimate == 0.001  # that of the check
        assert verdict.predicted_ns is None  # nobody predicted what it gives beside the others
        assert verdict.gate is not None
        assert verdict.gate.gate is Gate.ROUNDING
        assert "needed beside" in verdict.summary
        assert verdict.diff
    assert [shown is not None and shown.passed for shown in made.bench.shown] == [True] * 3


def test_the_last_that_is_left_of_them_is_tried_against_the_original(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.left_out = {"no-item": Decision.NO_CHANGE, "narrow-model": Decision.NO_CHANGE}
    done = made.run()
    assert made.bench.checks[-1] == ("faster-loader", SOURCE, SOURCE.replace("= 1", "= 10"))
    (kept,) = [verdict for verdict in done.verdicts if verdict.decision is Decision.KEPT]
    assert kept.saving is not None
    assert "what is left of them by itself" in kept.summary


@pytest.mark.parametrize("cut_short", [Decision.NOT_TRIED, Decision.UNVERIFIED])
def test_where_the_compiler_may_have_taken_the_time_the_others_are_tried_at_once_without_it(
    tmp_path: Path, cut_short: Decision
) -> None:
    compiler = fixer("compile-model", replacing("import torch", "import torch  # compiled"), Gate.ROUNDING, order=60)
    assert compiler.compiles
    made = together(tmp_path, compiler, LOADER, ITEM, MODEL)
    made.bench.by_text = {"# compiled": cut_short}
    outcome = made.run()
    assert [(name, patched) for name, _, patched in made.bench.attempts] == [
        (TOGETHER, ALL.replace("torch", "torch  # compiled")),
        (TOGETHER, ALL),
        ("compile-model", ALL.replace("torch", "torch  # compiled")),
    ]
    assert kept_text(outcome) == ALL


def test_what_saved_too_little_without_the_compiler_is_tried_again_with_it(tmp_path: Path) -> None:
    """A slow host hides what faster kernels save."""
    compiler = fixer("compile-model", replacing("import torch", "import torch  # compiled"), Gate.ROUNDING, order=60)
    made = together(tmp_path, LOADER, ITEM, MODEL, compiler, budget=Deadline(1000, lambda: 0))
    made.bench.trial_takes_ns, made.bench.compiling_takes_ns = 10, 60
    compiled = ALL.replace("torch", "torch  # compiled")
    made.bench.decisions = {**made.bench.decisions, TOGETHER: Decision.NO_CHANGE}
    made.bench.by_text = {"# compiled": Decision.KEPT}
    outcome = made.run()
    assert [(name, patched) for name, _, patched in made.bench.attempts] == [(TOGETHER, ALL), (TOGETHER, compiled)]
    assert kept_text(outcome) == compiled


def test_where_their_numbers_cannot_be_checked_those_that_change_no_bit_are_tried_at_once(tmp_path: Path) -> None:
    assert [one.gate for one in (LOADER, ITEM, MODEL)] == [Gate.BITWISE, Gate.BITWISE, Gate.ROUNDING]
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.by_text = {"= 30": Decision.UNVERIFIED}
    outcome = made.run()
    exact = ALL.replace("= 30", "= 3")
    assert [(name, patched) for name, _, patched in made.bench.attempts] == [
        (TOGETHER, ALL),
        (TOGETHER, exact),
        ("narrow-model", ALL),
    ]
    assert kept_text(outcome) == exact


def test_where_none_of_them_holds_by_itself_none_is_kept(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.left_out = dict.fromkeys(("faster-loader", "no-item", "narrow-model"), Decision.NO_CHANGE)
    assert made.run().patch is None
    patched = fold(made.events).patch
    assert patched is not None
    assert patched.fixers == []


def test_while_a_fix_is_left_out_the_check_is_what_goes_on(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    checks = [at for at, event in enumerate(made.events) if isinstance(event, TrialStarted) and not event.predicted_ns]
    assert len(checks) == 3
    for at in checks:
        phase = fold(made.events[: at + 2]).phase
        assert phase is not None
        assert phase.phase == "leave-one-out check"


def test_what_is_not_needed_beside_the_others_goes_out_again(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.left_out = {"no-item": Decision.NO_CHANGE}
    outcome = made.run()
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == ALL.replace("= 20", "= 2").encode()
    (dropped,) = [verdict for verdict in outcome.verdicts if verdict.decision is not Decision.KEPT]
    assert (dropped.fixer, dropped.decision) == ("no-item", Decision.NO_CHANGE)
    assert "not needed beside" in dropped.summary


def test_what_another_builds_on_is_left_out_once_that_one_is_gone(tmp_path: Path) -> None:
    """Else it would stay on the word of a common trial that others may have won."""
    more = fixer("more-of-it", _only_after_loader, after=("faster-loader",))
    made = together(tmp_path, more, LOADER, ITEM)
    made.bench.left_out = {"more-of-it": Decision.NO_CHANGE, "faster-loader": Decision.SLOWER}
    outcome = made.run()
    assert [name for name, _, _ in made.bench.checks] == ["no-item", "more-of-it", "faster-loader"]
    item = SOURCE.replace("= 2", "= 20")
    assert made.bench.checks[-1] == ("faster-loader", item, item.replace("= 1", "= 10"))
    assert outcome.patch is not None
    assert outcome.patch.changes[0].after == item.encode()


def _only_after_loader(request: Request) -> Answer:
    (path,) = request.sources
    text = request.sources[path]
    return Edits({path: text.replace("= 10\n", "= 10  # more\n")}, "more") if "= 10\n" in text else None


def test_a_gain_that_no_mechanism_explains_goes_out_too(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.left_out = {"no-item": Decision.UNEXPLAINED}
    assert made.run().verdicts[1].decision is Decision.UNEXPLAINED


def test_where_no_time_is_left_for_a_check_the_common_trial_stands_and_is_said_to(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL, budget=Deadline(100, lambda: 0))
    made.bench.trial_takes_ns, made.bench.check_takes_ns = 50, 200
    outcome = made.run()
    assert made.bench.checks == []
    assert all("together gave" in verdict.summary and verdict.saving is None for verdict in outcome.verdicts)
    assert "stay on the word of their trial with others" in fold(made.events).warnings[0]


def test_where_one_of_them_changes_the_numbers_of_the_whole_it_alone_goes(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.gate_by_text = {"loss = 20": False}
    outcome = made.run()
    assert kept_text(outcome) == ALL.replace("loss = 20", "loss = 2")
    assert {verdict.fixer: verdict.decision for verdict in outcome.verdicts} == {
        "faster-loader": Decision.KEPT,
        "no-item": Decision.CHANGES_NUMBERS,
        "narrow-model": Decision.KEPT,
    }
    assert "beside faster-loader, narrow-model it changes the numbers" in outcome.verdicts[1].summary
    patched = fold(made.events).patch
    assert patched is not None
    assert patched.fixers == ["faster-loader", "narrow-model"]


def test_the_boldest_promise_is_suspected_first(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.gate_by_text = {"loss = 20": False}
    made.run()
    assert [text for _, _, text, _ in made.bench.gates] == [
        ALL,
        ALL.replace("= 30", "= 3"),
        ALL.replace("= 20", "= 2"),
    ]


def test_where_no_single_one_is_to_blame_none_is_kept(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.bench.gate_passes = False
    outcome = made.run()
    assert outcome.patch is None
    assert {verdict.decision for verdict in outcome.verdicts} == {Decision.CHANGES_NUMBERS}


def test_what_a_needless_fix_had_excluded_has_its_turn_after_all(tmp_path: Path) -> None:
    rival = fixer("rival", replacing("loader = 1\n", "loader = 7\n"), conflicts=("faster-loader",))
    made = together(tmp_path, LOADER, ITEM, MODEL, rival)
    made.bench.left_out = {"faster-loader": Decision.NO_CHANGE}
    outcome = made.run()
    without = ALL.replace("loader = 10", "loader = 1")
    assert made.bench.attempts[1:] == [("rival", without, ALL.replace("loader = 10", "loader = 7"))]
    assert kept_text(outcome) == ALL.replace("loader = 10", "loader = 7")
    assert [verdict.decision for verdict in outcome.verdicts if verdict.fixer == "rival"] == [Decision.KEPT]


def test_the_setting_of_what_had_been_excluded_is_chosen_too_and_no_other_anew(tmp_path: Path) -> None:
    def knob(name: str, line: str, conflicts: tuple[str, ...] = ()) -> Fixer:
        rewrite = replacing(f"{line}\n", f"{line}0 + ")
        return fixer(name, rewrite, settings=lambda _: ({"n": 2}, {"n": 4}), conflicts=conflicts)

    rival = knob("rival", "loader = 1", ("faster-loader",))
    made = together(tmp_path, LOADER, knob("item", "loss = 2"), MODEL, rival)
    made.bench.left_out, made.bench.best_setting = {"faster-loader": Decision.NO_CHANGE}, 1
    settings = {verdict.fixer: verdict.setting for verdict in made.run().verdicts}
    assert settings["item"] == settings["rival"] == {"n": 4}
    assert len(made.bench.scales) == 2


def test_figures_of_the_check_are_no_measure_of_how_fixes_add_up(tmp_path: Path) -> None:
    made = together(tmp_path, LOADER, ITEM, MODEL)
    made.run()
    (final,) = [event for event in made.events if isinstance(event, FinalMeasured)]
    assert final.interaction is None
