"""Fixers none of which is enough by itself: what goes on top of what, what is left out again, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from composing import ITEM, LOADER, SOURCE, fixer, replacing
from rescuing import DIES, rescued

from diagnose.compose import Outcome
from diagnose.fixer import Answer, Request
from diagnose.model import Decision, Gate
from diagnose.session import TrialStarted, Warned, fold
from diagnose.trial.process.oom_progress import OomProgress, Phase
from diagnose.trial.schedule import Deadline

NEEDS_TWO = {"loader = 1\n": DIES, "loss = 2\n": DIES}
NEEDS_THREE = {**NEEDS_TWO, "model = 3\n": DIES}
MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"), Gate.ROUNDING, rounds_to="tf32")
SETTINGS = fixer("plans", replacing("loss = 2", "loss = 2"), settings=lambda _: tuple({"k": k} for k in (1, 2, 3, 4)))
BOTH = SOURCE.replace("= 1", "= 10").replace("= 2", "= 20")


def names(outcome: Outcome) -> tuple[str, ...]:
    return outcome.stack.names if outcome.stack else ()


def decisions(outcome: Outcome) -> dict[str, Decision]:
    return {verdict.fixer: verdict.decision for verdict in outcome.verdicts}


def test_two_that_are_too_little_by_themselves_are_put_on_top_of_each_other(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [LOADER, ITEM], NEEDS_TWO)
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert stage.bench.ran_alone[2:] == [BOTH]
    assert fold(stage.events).patch is not None
    assert decisions(outcome) == {LOADER.name: Decision.KEPT, ITEM.name: Decision.KEPT}
    said = {verdict.fixer: verdict.summary for verdict in outcome.verdicts}
    assert said[LOADER.name].startswith("beside no-item, the program runs with a peak of 3.00 GiB, 12.0 ms a step")
    assert "without them the program runs out of memory" in said[ITEM.name]
    assert [verdict.diff and verdict.diff.count("\n+") for verdict in outcome.verdicts] == [2, 2]


def test_a_stack_for_which_time_ends_before_the_step_in_which_the_program_died_is_not_kept(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [LOADER, ITEM], NEEDS_TWO, died_after=41, most_steps=41)
    assert stage.bench.ran_alone[2:] == [BOTH]
    assert outcome.patch is None
    assert decisions(outcome)[ITEM.name] is Decision.NOT_TRIED


def test_nothing_is_put_together_once_one_is_enough(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [LOADER, ITEM], {"loss = 2\n": DIES})
    assert names(outcome) == (ITEM.name,)
    assert len(stage.bench.ran_alone) == 2


@pytest.mark.parametrize(
    ("reached", "first"),
    [
        ({}, LOADER),
        ({"loss = 20": OomProgress(4)}, ITEM),
        ({"loader = 10": OomProgress(0), "loss = 20": OomProgress(0, Phase.BACKWARD)}, ITEM),
        ({"loader = 10": OomProgress(0, Phase.OPTIMIZER), "loss = 20": OomProgress(0, Phase.BACKWARD)}, LOADER),
    ],
)
def test_the_one_that_came_farthest_goes_first(tmp_path: Path, reached: dict[str, OomProgress], first: object) -> None:
    outcome, _ = rescued(tmp_path, [LOADER, ITEM], NEEDS_TWO, reached=reached)
    assert outcome.stack is not None and outcome.stack.kept[0].fixer == first


def test_what_is_to_come_after_another_does(tmp_path: Path) -> None:
    late = fixer("late", replacing("loss = 2", "loss = 20"), after=(LOADER.name,))
    outcome, _ = rescued(tmp_path, [late, LOADER], NEEDS_TWO, reached={"loss = 20": OomProgress(4)})
    assert names(outcome) == (LOADER.name, "late")


def test_three_are_needed_where_two_are_not_enough(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [LOADER, ITEM, MODEL], NEEDS_THREE)
    assert names(outcome) == (LOADER.name, ITEM.name, MODEL.name)
    assert {verdict.decision for verdict in outcome.verdicts} == {Decision.KEPT}
    assert len(stage.bench.ran_alone) == 3 + 2 + 2  # alone, two and three, three without one of the first two


def test_one_that_turns_out_not_to_be_needed_is_left_out_again(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [LOADER, MODEL, ITEM], NEEDS_TWO)
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert decisions(outcome)[MODEL.name] is Decision.NO_CHANGE
    (needless,) = (verdict for verdict in outcome.verdicts if verdict.fixer == MODEL.name)
    assert needless.summary.startswith("not needed beside faster-loader and no-item: the program runs")
    assert outcome.patch is not None and "model = 30" not in outcome.patch.text


def test_one_with_which_the_program_dies_earlier_does_not_stay(tmp_path: Path) -> None:
    worse = {"model = 30": OomProgress(0), "loader = 10": OomProgress(7)}
    outcome, stage = rescued(tmp_path, [LOADER, MODEL, ITEM], NEEDS_TWO, reached=worse)
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert stage.bench.ran_alone[-1] == BOTH
    assert decisions(outcome)[MODEL.name] is DIES
    (told,) = (verdict.summary for verdict in outcome.verdicts if verdict.fixer == MODEL.name)
    assert told == "beside faster-loader, as it ended"


def test_one_that_excludes_another_is_not_put_beside_it(tmp_path: Path) -> None:
    rival = fixer("rival", replacing("loss = 2", "loss = 2 "), conflicts=(LOADER.name,))
    outcome, stage = rescued(tmp_path, [LOADER, rival, ITEM], {"loader = 1\n": DIES, "loss = 2\n": DIES, "2 \n": DIES})
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert not any("loader = 10" in text and "loss = 2 " in text for text in stage.bench.ran_alone)
    (told,) = (verdict.summary for verdict in outcome.verdicts if verdict.fixer == "rival")
    assert told == "as it ended; not tried beside faster-loader, which excludes it"


def test_each_is_asked_anew_about_the_stack_so_far(tmp_path: Path) -> None:
    def rewrite(request: Request) -> Answer:
        (path,) = request.sources
        new = "loss = 21" if "loader = 10" in request.sources[path] else "loss = 20"
        return replacing("loss = 2", new)(request)

    outcome, _ = rescued(tmp_path, [LOADER, fixer("looks", rewrite)], NEEDS_TWO)
    assert outcome.patch is not None and "+loss = 21" in outcome.patch.text


def test_what_it_is_asked_about_is_where_the_stack_has_moved_it(tmp_path: Path) -> None:
    asked: list[tuple[int, str | None]] = []

    def rewrite(request: Request) -> Answer:
        asked.append((request.finding.where[0].line, request.finding.where[0].code))
        return replacing("loss = 2", "loss = 20")(request)

    longer = fixer("longer", replacing("loader = 1", "import os\nloader = 10"))
    outcome, _ = rescued(tmp_path, [longer, fixer("looks", rewrite)], NEEDS_TWO)
    assert names(outcome) == ("longer", "looks")
    assert (asked[0], asked[-1]) == ((3, "loss = 2"), (4, "loss = 2"))
    assert [place.line for verdict in outcome.verdicts for place in verdict.where] == [3, 3]


def test_one_that_breaks_on_the_stack_hides_no_other(tmp_path: Path) -> None:
    def rewrite(request: Request) -> Answer:
        (path,) = request.sources
        if "loader = 10" in request.sources[path]:
            raise ZeroDivisionError
        return replacing("model = 3", "model = 30")(request)

    outcome, _ = rescued(tmp_path, [LOADER, fixer("breaks", rewrite), ITEM], NEEDS_TWO)
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert any("the fixer itself failed: ZeroDivisionError()" in verdict.summary for verdict in outcome.verdicts)


def test_what_failed_otherwise_goes_on_no_stack(tmp_path: Path) -> None:
    outcome, stage = rescued(tmp_path, [LOADER, ITEM], {"loss = 20": Decision.FAILED, **NEEDS_TWO})
    assert outcome.patch is None
    assert len(stage.bench.ran_alone) == 2


def test_the_cheapest_setting_that_is_enough_on_the_stack_is_found_from_the_leanest(tmp_path: Path) -> None:
    too_little = {"loader = 1\n": DIES, "loss = 2\n": DIES, "loss = 21": DIES, "loss = 22": DIES}
    alone = {**too_little, "loader = 1\n": DIES}
    outcome, stage = rescued(tmp_path, [LOADER, SETTINGS], alone)
    assert outcome.stack is not None
    assert {kept.fixer.name: dict(kept.setting) for kept in outcome.stack.kept} == {LOADER.name: {}, "plans": {"k": 3}}
    tried = [text[text.index("loss") :].split("\n")[0] for text in stage.bench.ran_alone if "loader = 10" in text]
    assert tried == ["loss = 2", "loss = 24", "loss = 22", "loss = 23"]
    (gate,) = stage.bench.gates
    assert ("loss = 24" in gate[1], "loss = 23" in gate[2]) == (True, True)
    assert "against its leanest setting" in outcome.verdicts[0].summary


def test_the_numbers_of_the_stack_are_held_as_the_boldest_of_its_fixes_promises(tmp_path: Path) -> None:
    needs = {"loader = 1\n": DIES, "model = 3\n": DIES}
    _, stage = rescued(tmp_path, [LOADER, MODEL], needs, died_after=6)
    ((gate, original, patched, rounds_to),) = stage.bench.gates
    assert (gate, original, rounds_to) == (Gate.ROUNDING, SOURCE, "tf32")
    assert "loader = 10" in patched and "model = 30" in patched


def test_other_numbers_than_those_of_the_program_as_found_are_not_kept(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [LOADER, ITEM], NEEDS_TWO, gate_passes=False, died_after=6)
    assert outcome.patch is None
    assert set(decisions(outcome).values()) == {Decision.CHANGES_NUMBERS}


def test_with_nothing_to_compare_them_with_they_are_kept_and_said_so(tmp_path: Path) -> None:
    outcome, _ = rescued(tmp_path, [LOADER, ITEM], NEEDS_TWO)
    assert names(outcome) == (LOADER.name, ITEM.name)
    assert all("its numbers could not be compared" in verdict.summary for verdict in outcome.verdicts)


def test_every_run_is_told_before_its_verdict(tmp_path: Path) -> None:
    _, stage = rescued(tmp_path, [LOADER, MODEL, ITEM], NEEDS_TWO)
    started = [event for event in stage.events if isinstance(event, TrialStarted)]
    assert len(started) == len(stage.bench.ran_alone)
    assert started[-1].summary == "left out: faster-loader and no-item without it"


@pytest.mark.parametrize("ends_at", range(1, 40))
def test_whenever_the_budget_ends_there_is_a_stack_that_ran_or_a_word_why_not(tmp_path: Path, ends_at: int) -> None:
    clock = iter(range(1000))
    outcome, stage = rescued(
        tmp_path, [LOADER, SETTINGS, MODEL], NEEDS_THREE, deadline=Deadline(ends_at, lambda: next(clock))
    )
    told = {verdict.decision for verdict in outcome.verdicts}
    warned = any(isinstance(event, Warned) and "there is no time" in event.message for event in stage.events)
    if outcome.patch is None:
        assert Decision.NOT_TRIED in told or warned
    else:
        assert outcome.stack is not None and outcome.stack.texts[str(outcome.stack.program.entry)] in (
            stage.bench.ran_alone
        )
