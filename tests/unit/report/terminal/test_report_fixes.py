"""What a report of `diagnose fix` puts first, says once, and leaves to the user."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import journals
import pytest

from diagnose.compose.journal import NOTHING_TO_CHANGE
from diagnose.compose.search.budget import Budget
from diagnose.model import TOGETHER, Confidence, Decision, Gate, GateResult, Interval, Mechanism, Place, Verdict
from diagnose.report.export import github, markdown
from diagnose.report.page import html
from diagnose.report.sections import verdict_table
from diagnose.report.terminal import text
from diagnose.report.wording.phrases import particulars
from diagnose.session import ControlMeasured, PatchAccepted, RunEnded, RunStarted, State, TrialStarted, TrialState, fold

if TYPE_CHECKING:
    from diagnose.trial.bench import Bench
    from diagnose.trial.schedule import Deadline

STARTED = RunStarted(command="fix", program="train.py --big", cwd="/home/user", version="0.1.0")
ENDED = RunEnded(returncode=0, exit_code=0)
CONTROL = ControlMeasured(resolution=0.01, pairs=8, generations=2, step_ns=20_000_000)
KEPT = Verdict(
    "late",
    Decision.KEPT,
    "22 % of the step saved (8 pairs, +20.7 % … +23.4 %); five losses are equal; still needed beside two others",
    saving=Interval(0.22, 0.207, 0.234),
    saving_ns=4_400_000,
    predicted_ns=5_000_000,
    pairs=8,
    gate=GateResult(Gate.BITWISE, True, "five losses are equal"),
    prediction=Confidence.BOUND,
)
SLOW = Verdict("early", Decision.NO_CHANGE, "no measurable saving", saving=Interval(0.0, -0.1, 0.1), saving_ns=0)
TWIN = replace(SLOW, fixer="other")
NO_TIME = [
    Verdict(name, Decision.NOT_TRIED, f"the budget leaves 1 s (this would take about {name})", predicted_ns=9_000_000)
    for name in ("slow-one", "slow-two")
]
ASKS = Verdict("bold", Decision.NOT_TRIED, "it changes the training itself; `--allow training` lets it be tried")
ADVICE = Verdict("careful", Decision.ADVICE, "pass it yourself", where=(Place("/home/user/net.py", 7, code="f(x)"),))
ALL = State(started=STARTED, control=CONTROL, verdicts=(SLOW, *NO_TIME, ADVICE, TWIN, KEPT, ASKS), ended=ENDED)


def test_the_kept_fix_comes_first_and_what_was_not_tried_is_in_no_table() -> None:
    said = text.render(ALL)
    assert said.index("✓ late ") < said.index("≈ early ") < said.index("Not tried") < said.index("By hand")
    assert said.count("not measured") == 0


def test_steps_of_minutes_stand_in_the_table_as_others_do() -> None:
    minutes = replace(KEPT, predicted_ns=750_000_000_000, saving_ns=71_000_000_000)
    head, *table = text.render(replace(ALL, verdicts=(minutes, SLOW))).partition("  fix ")[2].splitlines()[:3]
    assert all(len(row) <= 80 for row in table)
    assert "12 min 30 s  1 min 11 s" in table[0]
    assert {len(row) - len(row.rpartition("  ")[2]) for row in table} == {len("  fix " + head) - len("verdict")}


def test_a_reason_that_fixes_share_is_said_once() -> None:
    for said in (text.render(ALL), markdown.render(ALL)):
        assert said.count("he budget leaves 1 s.") == 1
        assert "slow-one (9.00 ms), slow-two (9.00 ms)" in said
        assert said.count("o measurable saving") == 1
        assert "early, other" in said


def test_a_fixer_without_an_edit_is_no_fix_that_was_left_untried() -> None:
    idle = Verdict("idle", Decision.NOT_TRIED, NOTHING_TO_CHANGE)
    beside = State(started=STARTED, control=CONTROL, verdicts=(SLOW, idle), ended=ENDED)
    for render in (text.render, markdown.render, html.render):
        said = render(beside)
        assert "Not tried" not in said
        assert "othing to change in the program as it stands for idle." in said
        assert "explain idle" in " ".join(said.split())
    assert "No fix was kept (1 measured, 1 with nothing to change)" in text.render(beside)
    alone = State(started=STARTED, verdicts=(idle,), diagnosis=fold(journals.diagnosed()).diagnosis, ended=ENDED)
    assert "No fixer has an edit for what was found here" in text.render(alone)


def test_what_is_equal_bit_for_bit_is_said_so_once_and_measures_have_words() -> None:
    equal = GateResult(Gate.BITWISE, True, "5 losses and gradients are equal bit for bit")
    moved = Mechanism("compute+idle.launch", 2_000_000, 1_000_000, "ns", True)
    said = dict(particulars(replace(KEPT, gate=equal, mechanism=moved)))
    assert said["numbers"] == "bit for bit equal: 5 losses and gradients"
    assert said["mechanism"] == "compute and idle, kernel launch moved: 2.00 ms → 1.00 ms"
    several = replace(moved, measure="compute+idle.launch+idle.input")
    said = dict(particulars(replace(KEPT, mechanism=several)))
    assert said["mechanism"].startswith("compute and idle time (kernel launch, waiting for input) moved")


def test_annotations_of_a_pull_request_leave_out_what_had_no_edit() -> None:
    idle = Verdict("idle", Decision.NOT_TRIED, NOTHING_TO_CHANGE)
    said = github.render(State(started=STARTED, verdicts=(KEPT, idle), ended=ENDED))
    assert "late%3A kept" in said
    assert "idle" not in said


def test_a_reviewer_reads_what_was_changed_before_what_could_not_be_told() -> None:
    found = fold(journals.diagnosed()).diagnosis
    assert found is not None
    diagnosis = replace(found, warnings=("noisy",))
    said = markdown.render(replace(ALL, diagnosis=diagnosis))
    assert said.index("## Fixes tried") < said.index("## Warnings") < said.index("**Next:**")


def test_a_reason_of_one_fix_alone_is_said_in_full() -> None:
    assert "The budget leaves 1 s (this would take about slow-one)." in text.render(
        replace(ALL, verdicts=(NO_TIME[0],))
    )


def test_a_kept_fix_says_each_figure_once() -> None:
    said = " ".join(text.render(ALL).split())
    assert said.count("five losses are equal") == 1
    assert said.count("22 % of the step saved") == 0
    assert said.count("Still needed beside two others") == 1


@pytest.mark.parametrize(
    ("summary", "said"),
    [("as told", "as told"), ("22 % of the step saved (8 pairs, a … b); five losses are equal", "")],
)
def test_what_is_left_of_a_sentence_beside_its_figures(summary: str, said: str) -> None:
    assert verdict_table.remark(replace(KEPT, summary=summary)) == said


def test_advice_names_its_place() -> None:
    assert "→ careful\n    net.py:7  f(x)\n    Pass it yourself.\n" in text.render(ALL)
    assert "- careful, `net.py:7`: Pass it yourself." in markdown.render(ALL)


def test_a_run_that_kept_nothing_says_so_and_names_what_needs_the_users_word() -> None:
    said = text.render(replace(ALL, verdicts=(SLOW, ASKS), patch=PatchAccepted(diff="", fixers=[])))
    assert "No fix held: your program stays as it is." in said
    assert "Next   diagnose fix --allow training train.py --big\n       tries bold too" in said


def test_a_run_that_kept_nothing_says_so_at_the_top() -> None:
    state = replace(ALL, verdicts=(SLOW, ASKS, ADVICE), patch=PatchAccepted(diff="", fixers=[]), final=None)
    news = "No fix was kept (1 measured, 1 not tried, 1 left to you): your program stays as it is."
    assert news in " ".join(text.render(state).split("\n\n")[0].split())
    assert markdown.render(state).split("\n\n")[1] == f"**{news}**"
    assert news in html.render(state)
    assert "No fix was kept" not in text.render(fold(journals.fixed()))


def test_what_the_budget_left_no_time_for_is_what_to_do_next() -> None:
    late = Verdict("late", Decision.NOT_TRIED, "the budget leaves no time before the last runs (this would take 1 min)")
    said = text.render(replace(ALL, verdicts=(SLOW, late), patch=PatchAccepted(diff="", fixers=[]), final=None))
    assert "Next   diagnose fix train.py --big\n       without a --budget has the time for late" in said


@pytest.mark.parametrize("left_ns", [0, 5])
def test_the_budget_s_reasons_are_known_by_their_words(left_ns: int) -> None:
    bench = SimpleNamespace(final_ns=lambda **_: 0, check_ns=lambda: 10)
    reason = Budget(cast("Bench", bench), cast("Deadline", SimpleNamespace(left_ns=left_ns))).refused_check()
    assert reason is not None
    assert verdict_table.out_of_time(State(verdicts=(Verdict("late", Decision.NOT_TRIED, reason),)))


def test_the_gain_stands_at_the_top() -> None:
    state = fold(journals.fixed())
    top = text.render(state).split("\n\n")[0]
    assert "✓ 2 kept fixes: 60.1 ms → 23.1 ms per step: 2.60 times the throughput" in " ".join(top.split())
    assert markdown.render(state).split("\n\n")[2].startswith("**60.1 ms → 23.1 ms per step: 2.60 times")


def test_a_kept_fix_that_was_not_run_alone_stands_at_the_top_by_its_trial() -> None:
    state = replace(ALL, patch=PatchAccepted(diff="--- a\n+++ b\n", fixers=["late"]), final=None)
    said = "1 kept fix: late saves 4.40 ms or 22 % of each step, by its trial; the patched program was not run alone"
    assert f"✓ {said}" in " ".join(text.render(state).split())
    assert f"**{said}**" in markdown.render(state)
    assert "late saves 4.40 ms or 22 % of each step" in html.render(state)


def test_a_dry_run_shows_each_diff_and_claims_nothing() -> None:
    verdict = Verdict(
        "late", Decision.NOT_TRIED, "it moves a line", predicted_ns=5_000_000, diff="--- a\n+++ b\n+moved\n"
    )
    state = State(started=started_dry(), verdicts=(verdict, ADVICE), ended=ENDED)
    for said in (text.render(state), markdown.render(state)):
        assert "ixes that would be tried" in said
        assert "late (5.00 ms)" in said
        assert "+moved" in said
        assert "careful" in said
        assert "Not tried" not in said
    assert "Next   diagnose fix train.py --big" in text.render(state)


def started_dry() -> RunStarted:
    return RunStarted(command="fix", program="train.py --big", cwd="/home/user", version="0.1.0", dry=True)


def tried_at_once() -> State:
    joint = Verdict(
        TOGETHER,
        Decision.KEPT,
        "90 % of the step saved (8 pairs, +89.5 % … +89.7 %); losses hold",
        saving=Interval(0.9, 0.895, 0.897),
        saving_ns=349_000_000,
        predicted_ns=322_000_000,
        pairs=8,
        gate=GateResult(Gate.ROUNDING, True, "losses hold"),
        peak_memory_bytes=(34 << 30, 16 << 30),
        startup_ns=(14_000_000_000, 36_000_000_000),
    )
    started = TrialStarted(fixer=TOGETHER, setting={}, predicted_ns=322_000_000, summary="one, two, at once", diff="")
    said = f"tried with 1 other at once, which together gave: {joint.summary}"
    each = tuple(Verdict(name, Decision.KEPT, said, predicted_ns=1_000_000, resolution=0.02) for name in ("one", "two"))
    return State(started=STARTED, verdicts=each, trials=(TrialState(started, (), joint),), ended=ENDED)


def test_fixes_that_were_tried_at_once_and_not_run_alone_stand_at_the_top_by_their_trial() -> None:
    state = replace(tried_at_once(), patch=PatchAccepted(diff="--- a\n+++ b\n", fixers=["one", "two"]))
    said = "2 kept fixes: one and two together save 349 ms or 90 % of each step, by their trial"
    assert f"✓ {said}; the patched program was not run alone" in " ".join(text.render(state).split())


def test_fixes_that_were_tried_at_once_show_the_figures_of_their_common_trial_once() -> None:
    state = tried_at_once()
    report = " ".join(text.render(state).split())
    assert "✓ all together 322 ms 349 ms +90.0 % [+89.5, +89.7] kept ✓ one 1.00 ms – with the others kept" in report
    assert "✓ one, two kept Tried at once. saving +90.0 %" in report
    assert "34.0 GiB → 16.0 GiB" in report
    assert report.count("losses hold") == 1
    for page in (markdown.render(state), html.render(state)):
        assert page.count("Tried at once.") == 1
        assert page.count("34.0 GiB → 16.0 GiB") == 1
        assert "all together" in page
