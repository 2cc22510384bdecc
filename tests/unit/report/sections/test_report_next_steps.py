"""What a run says to type next, and why a machine too restless to tell is no reason to give a fix up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.model import (
    Accounting,
    CannotTell,
    Confidence,
    Decision,
    Diagnosis,
    Facts,
    Finding,
    Interval,
    Severity,
    Steps,
    Verdict,
)
from diagnose.report.export import github, junit, markdown
from diagnose.report.page import html
from diagnose.report.sections.next_steps import next_command, next_commands
from diagnose.report.sections.run_outcome import restless
from diagnose.report.terminal import text
from diagnose.report.wording.cannot_tell import unsure
from diagnose.session import ControlMeasured, FinalMeasured, PatchAccepted, RunEnded, RunStarted, State

STARTED = RunStarted(command="fix", program="train.py --big", cwd="/home/user", version="0.1.0")
RUN = RunStarted(command="run", program="train.py --big", cwd="/home/user", version="0.1.0")
ENDED = RunEnded(returncode=0, exit_code=0)
FINDING = Finding(
    "input-bound", Severity.HIGH, None, 5_000_000, 0.5, Confidence.MEASURED, "It waits.", fixers=("a", "b", "c", "d")
)
DIAGNOSIS = Diagnosis(
    schema=1,
    source=("trace.json.gz",),
    ranks=1,
    device=None,
    steps=Steps(4, 10_000_000, 10_000_000, 40_000_000, "profiler marks"),
    accounting=Accounting(compute=5_000_000, idle={"input": 5_000_000}),
    findings=(FINDING,),
)
KEPT = Verdict("kept-one", Decision.KEPT, "22 % of the step saved", saving=Interval(0.22, 0.2, 0.24))
LATE = Verdict("late", Decision.NOT_TRIED, "the budget leaves 1 s before the last runs")
ASKS = Verdict("bold", Decision.NOT_TRIED, "it changes the training itself; `--allow training` lets it be tried")
PATCH = PatchAccepted(diff="--- a\n+++ b\n", fixers=["kept-one"])
QUIET = ControlMeasured(resolution=0.01, pairs=8, generations=2, step_ns=130_000_000)
RESTLESS = ControlMeasured(resolution=0.39, pairs=8, generations=2, step_ns=130_000_000)
WIDE = Verdict("loader-workers", Decision.NO_CHANGE, "no measurable saving", saving=Interval(0.396, -0.222, 0.704))
NARROW = replace(WIDE, saving=Interval(0.02, -0.02, 0.06))
BY_HAND = ("diagnose explain input-bound", "says what helps by hand")


def test_what_was_kept_is_written_first_and_what_was_left_comes_after() -> None:
    state = State(started=STARTED, verdicts=(KEPT, LATE, ASKS), patch=PATCH, ended=ENDED)
    assert [command for command, _ in next_commands(state)] == [
        "diagnose apply",
        "diagnose fix train.py --big",
        "diagnose fix --allow training train.py --big",
    ]
    assert next_command(state) == next_commands(state)[0]
    said = text.render(state)
    assert said.index("Next   diagnose apply") < said.index("Then   diagnose fix train.py --big")
    assert "**Then:** `diagnose fix train.py --big`" in markdown.render(state)
    assert '<span class="muted">then</span> <code>diagnose fix train.py --big</code>' in html.render(state)


def test_a_saving_that_the_last_runs_do_not_show_is_measured_again_first() -> None:
    alone = FinalMeasured(original_ns=10_000_000, patched_ns=10_100_000, runs=2, how="each program alone")
    state = State(started=STARTED, verdicts=(KEPT,), patch=PATCH, final=alone, ended=ENDED)
    (again, why), (apply, _) = next_commands(state)
    assert (again, apply) == ("diagnose fix train.py --big", "diagnose apply")
    assert why == "measures again: run alone, the patched program was no faster"
    late = next_commands(replace(state, verdicts=(KEPT, LATE)))
    assert [command for command, _ in late] == ["diagnose fix train.py --big", "diagnose apply"]  # each once
    assert late[0][1] == f"{why}; without a --budget has the time for late"
    confirmed = replace(state, final=FinalMeasured(original_ns=10_000_000, patched_ns=8_000_000, runs=2, how="alone"))
    assert [command for command, _ in next_commands(confirmed)] == ["diagnose apply"]


@pytest.mark.parametrize("decision", [Decision.SLOWER, Decision.CHANGES_NUMBERS, Decision.FAILED])
def test_where_nothing_was_kept_the_next_step_is_what_helps_by_hand(decision: Decision) -> None:
    state = State(started=STARTED, diagnosis=DIAGNOSIS, verdicts=(Verdict("a", decision, ""),), ended=ENDED)
    assert next_commands(state) == [BY_HAND]


def test_what_was_found_on_a_recording_and_has_no_fixer_is_explained() -> None:
    alone = replace(DIAGNOSIS, findings=(replace(FINDING, fixers=()),))
    assert next_commands(State(diagnosis=alone)) == [BY_HAND]
    assert next_commands(State(started=STARTED, diagnosis=alone)) == []  # it goes on


def test_of_many_fixers_two_are_named() -> None:
    state = State(started=RUN, diagnosis=DIAGNOSIS, ended=ENDED)
    assert next_command(state) == (
        "diagnose fix train.py --big",
        "tries a, b and 2 more on a copy, where they have an edit",
    )


@pytest.mark.parametrize(("rule", "offered"), [("input-bound", 0), ("memory-pressure", 1)])
def test_a_program_that_failed_is_mended_first_unless_it_failed_for_want_of_memory(rule: str, offered: int) -> None:
    diagnosis = replace(DIAGNOSIS, findings=(replace(FINDING, rule=rule),))
    failed = RunEnded(returncode=1, exit_code=3, message="the program failed with exit code 1")
    state = State(started=RUN, diagnosis=diagnosis, ended=failed)
    assert len(next_commands(state)) == offered


def test_where_no_fixer_has_an_edit_the_same_command_is_not_named_again() -> None:
    state = State(started=STARTED, diagnosis=DIAGNOSIS, ended=ENDED)
    said = "No fixer has an edit for what was found here: your program stays as it is."
    assert next_commands(state) == [BY_HAND]
    assert said in text.render(state)
    assert f"**{said}**" in markdown.render(state)
    assert said in html.render(state)
    assert said not in text.render(replace(state, ended=RunEnded(returncode=130, exit_code=130)))
    assert said not in text.render(replace(state, started=RUN))


def test_what_came_of_it_fits_the_screen() -> None:
    advice = Verdict("by-hand", Decision.ADVICE, "do this")
    wide = State(started=STARTED, verdicts=(WIDE, LATE, ASKS, advice), control=RESTLESS, ended=ENDED)
    said = text.render(wide, width=60)
    assert "No fix was kept" in said
    assert max(map(len, said.splitlines())) <= 60


def test_what_looked_faster_in_pairs_that_scatter_is_undecided_though_the_control_was_quiet() -> None:
    state = State(started=STARTED, verdicts=(replace(WIDE, saving=Interval(0.08, -0.15, 0.36)),), control=QUIET)
    assert "Undecided: loader-workers (up to 36 %)" in restless(state)


def test_on_a_restless_machine_what_may_well_help_is_called_undecided() -> None:
    state = State(
        started=STARTED, verdicts=(WIDE,), control=RESTLESS, ended=ENDED, patch=PatchAccepted(diff="", fixers=[])
    )
    said = " ".join(text.render(state).split())
    assert "No fix was kept (1 undecided)" in said
    assert "Undecided: loader-workers (up to 70 %)." in said
    assert "≈ undecided" in markdown.render(state)
    assert "undecided</span>" in html.render(state)
    assert "undecided::" in github.render(state)
    assert 'undecided"' in junit.render(state)
    assert "no change" not in said
    quiet = replace(state, control=QUIET, verdicts=(NARROW,))
    assert "no change" in text.render(quiet)
    assert "undecided" not in text.render(quiet)
    assert "too noisy to measure savings below 46 % of a step" in said
    assert next_commands(state) == [
        ("diagnose fix train.py --big", "re-run on a quiet machine to settle loader-workers")
    ]


def test_what_a_trial_could_tell_is_its_own_figure_not_that_of_an_earlier_control() -> None:
    coarse = replace(WIDE, saving=Interval(0.04, -0.05, 0.13), resolution=0.12)
    said = restless(State(started=STARTED, verdicts=(coarse,), control=QUIET, ended=ENDED))
    assert "below 12 % of a step" in said


@pytest.mark.parametrize(
    ("control", "saving"),
    [
        (QUIET, NARROW.saving),
        (QUIET, Interval(-0.03, -0.15, 0.09)),
        (RESTLESS, Interval(0.0, -0.4, 0.04)),
        (None, NARROW.saving),
        (RESTLESS, None),
    ],
)
def test_elsewhere_no_change_means_what_it_says(control: ControlMeasured | None, saving: Interval | None) -> None:
    state = State(started=STARTED, verdicts=(replace(WIDE, saving=saving),), control=control, ended=ENDED)
    assert restless(state) == ""
    assert next_commands(state) == []


def test_a_run_on_a_cpu_alone_does_not_list_every_rule_about_devices() -> None:
    needs = (
        "a recording of the device's work",
        "clocks and throttle reasons of the device: some seconds of a live run",
    )
    unsure = (
        *(CannotTell(f"rule-{number}", need) for number, need in enumerate(needs)),
        CannotTell("other", "a thing"),
    )
    diagnosis = replace(DIAGNOSIS, cannot_tell=unsure)
    live = State(started=STARTED, diagnosis=diagnosis, facts={0: Facts()})
    said = " ".join(text.render(live).split())
    assert "2 GPU rules skipped (CPU-only run)" in said
    for render in (markdown.render, html.render):
        same = render(live)
        assert "2 GPU rules skipped (CPU-only run)" in same
        assert "a recording of the device" not in same
    assert "rule-0" not in said
    assert "a thing other" in said
    unseen = replace(live, facts={0: Facts(device_name="NVIDIA H200")})
    assert "the CPU alone" not in text.render(unseen), "a device was there, and its work was not recorded"
    assert "rule-0" in text.render(unseen)
    assert "rule-0" in text.render(diagnosis)  # of a recording it is not known whether there was a device


def test_steps_of_which_nothing_was_recorded_are_not_followed_by_a_list_of_all_rules() -> None:
    blank = replace(
        DIAGNOSIS,
        accounting=Accounting(idle={"unknown": 10_000_000}),
        findings=(),
        cannot_tell=(CannotTell("some-rule", "a recording"),),
        warnings=("it ended early",),
    )
    said = text.render(blank)
    assert "some-rule" not in said
    assert "! it ended early" in said


def test_one_fix_is_no_several() -> None:
    one = replace(DIAGNOSIS, findings=(replace(FINDING, fixers=("a",)),))
    state = State(started=RUN, diagnosis=one, ended=ENDED)
    assert next_command(state) == ("diagnose fix train.py --big", "tries a on a copy, where it has an edit")


def test_after_a_dry_run_a_trial_is_the_next_step_only_where_there_is_something_to_try() -> None:
    dry = RunStarted(command="fix", program="train.py --big", cwd="/home/user", version="0.1.0", dry=True)
    advice = Verdict("b", Decision.ADVICE, "do it by hand")
    would = Verdict("a", Decision.NOT_TRIED, "change this", diff="-x\n+y\n")
    assert next_command(State(started=dry, diagnosis=DIAGNOSIS, verdicts=(advice,), ended=ENDED)) == BY_HAND
    said = next_command(State(started=dry, diagnosis=DIAGNOSIS, verdicts=(would, advice), ended=ENDED))
    assert said == ("diagnose fix train.py --big", "tries it on a copy of your files and measures it")


def test_after_a_dry_run_what_broke_is_not_promised_and_what_asks_for_a_word_is_named_with_it() -> None:
    dry = RunStarted(command="fix", program="train.py --big", cwd="/home/user", version="0.1.0", dry=True)
    asks = Verdict("bold", Decision.NOT_TRIED, f"bfloat16 ({ASKS.summary})", diff="-x\n+y\n")
    broken = Verdict("c", Decision.FAILED, "the fixer itself failed")
    assert next_commands(State(started=dry, diagnosis=DIAGNOSIS, verdicts=(asks, broken), ended=ENDED)) == [
        ("diagnose fix --allow training train.py --big", "tries bold too, which changes the training")
    ]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (
            (KEPT, LATE),
            "Interrupted before all that held so far (kept-one) was measured as a whole: there is no patch to",
        ),
        ((WIDE, LATE), "Interrupted before a fix was kept: your program stays as it is."),
    ],
)
def test_trials_that_the_user_ended_are_told_as_such_and_tried_again(verdicts: tuple[Verdict, ...], said: str) -> None:
    ended = RunEnded(returncode=0, exit_code=130, message="interrupted")
    state = State(started=STARTED, diagnosis=DIAGNOSIS, verdicts=verdicts, patch=PATCH, control=QUIET, ended=ended)
    for words in (text.render(state), markdown.render(state), html.render(state)):
        assert said in " ".join(words.split())
        assert "No fix held" not in words
        assert "No fix was kept" not in words
    assert next_commands(state)[0] == (
        "diagnose fix train.py --big",
        "tries them again; with --budget 5m it ends within that time by itself",
    )


def test_a_program_that_was_interrupted_before_its_trials_is_no_trial_cut_short() -> None:
    ended = RunEnded(returncode=0, exit_code=130, message="interrupted")
    said = text.render(State(started=STARTED, diagnosis=DIAGNOSIS, ended=ended))
    assert "Interrupted before" not in said
    assert "Next   diagnose fix train.py --big" in said


def test_trials_that_an_error_ended_say_which() -> None:
    ended = RunEnded(returncode=0, exit_code=3, message="an unchanged copy fails: exit code 1\nTraceback …")
    state = State(started=STARTED, diagnosis=DIAGNOSIS, control=QUIET, ended=ended)
    said = " ".join(text.render(state).split())
    assert "Ended by an error before a fix was kept: your program stays as it is. An unchanged copy fails" in said
    assert "Traceback" not in said


def test_what_ranks_lack_alike_is_said_once() -> None:
    needs = [f"the lengths of more steps: this run logged {count}" for count in (24, 25)]
    lacking = (
        *(CannotTell("periodic-stall", need) for need in needs),
        CannotTell("straggler", needs[1]),
        CannotTell("periodic-stall", "an untroubled host"),
    )
    said = unsure(State(started=STARTED, diagnosis=replace(DIAGNOSIS, cannot_tell=lacking)))
    assert said == {needs[0]: "periodic-stall", needs[1]: "straggler", "an untroubled host": "periodic-stall"}
