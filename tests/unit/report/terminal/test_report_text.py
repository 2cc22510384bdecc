"""The text report: read top to bottom, it answers what the run is, what to fix first, and what came of it."""

from __future__ import annotations

import re
from dataclasses import replace

import journals
import pytest
import tinygpt
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.model import (
    TOGETHER,
    Accounting,
    CannotTell,
    Confidence,
    Decision,
    Diagnosis,
    Evidence,
    Finding,
    Interval,
    Place,
    Severity,
    Steps,
    Verdict,
)
from diagnose.report import formats
from diagnose.report.export import markdown
from diagnose.report.page import html
from diagnose.report.terminal import text
from diagnose.report.terminal.text import finding_lines
from diagnose.session import PatchAccepted, RunEnded, State, TrialStarted, TrialState, fold
from diagnose.units import format_ns

SMALL = Diagnosis(
    schema=1,
    source=("trace.json.gz",),
    ranks=1,
    device="NVIDIA H200",
    steps=Steps(4, 20_000_000, 20_000_000, 80_000_000, "profiler marks"),
    accounting=Accounting(compute=5_000_000, idle={"input": 15_000_000}),
    findings=(
        Finding(
            "input-bound",
            Severity.HIGH,
            None,
            15_000_000,
            0.75,
            Confidence.MEASURED,
            "The device waits for the loader.",
            (Evidence("idle.input", 15_000_000, "ns"), Evidence("loader workers", 0, "count")),
            (Place("train.py", 41, "loader = DataLoader(dataset, batch_size=16)"),),
            ("loader-workers",),
        ),
    ),
    cannot_tell=(CannotTell("fp32-matmul", "shapes in the trace"),),
)


def test_a_device_without_a_name_is_not_taken_for_none() -> None:
    unnamed = replace(SMALL, device=None, has_device=True)
    assert text.render(unnamed).startswith("trace.json.gz · a device of unknown name · 1 rank")
    assert text.render(replace(unnamed, has_device=False)).startswith("trace.json.gz · no device recorded · 1 rank")


def test_a_step_as_long_as_the_mean_of_the_traced_ones_is_not_told_as_one_without_the_profiler() -> None:
    traced = replace(SMALL, steps=replace(SMALL.steps, mean_ns=22_000_000))
    alike = text.render(replace(traced, step_ns=22_000_000))
    assert "22.0 ms per traced step on average · 20.0 ms median of 4 steps" in alike.replace("\n ", " ·")
    without = text.render(replace(traced, step_ns=15_000_000))
    assert "15.0 ms per step · 20.0 ms as traced, median of 4 steps" in without.replace("\n ", " ·")
    longer_outside = text.render(replace(traced, step_ns=26_000_000))
    assert "26.0 ms per step · 20.0 ms as traced, median of 4 steps" in longer_outside.replace("\n ", " ·")


def test_a_recording_of_several_ranks_is_named_once() -> None:
    assert text.render(replace(SMALL, source=("a", "a"), ranks=2)).startswith("a · NVIDIA H200 · 2 ranks")
    assert text.render(replace(SMALL, source=("a", "a", "b"), ranks=3)).startswith("a and 1 more · NVIDIA H200")


def test_a_small_diagnosis_reads_like_this() -> None:
    assert (
        text.render(SMALL)
        == """\
trace.json.gz · NVIDIA H200 · 1 rank · 20.0 ms per step · median of 4 steps
  from ProfilerStep marks

Where a step's 20.0 ms go   median step = 100 %
████████████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
█ compute             5.00 ms   25 %    ░ waiting for input   15.0 ms   75 %

Fix this first
 1 ▲ high   input-bound                    15.0 ms of each step (75 %), measured
     The device waits for the loader.
     where       train.py:41  loader = DataLoader(dataset, batch_size=16)
     evidence    idle, waiting for input 15.0 ms · loader workers 0
     would try   loader-workers

Cannot tell   from this recording; what it would take
  shapes in the trace
      fp32-matmul

Next   diagnose fix SCRIPT
       tries loader-workers on a copy, where it has an edit
"""
    )


def test_what_several_rules_lack_is_said_once() -> None:
    needs = "a recording of the device's work"
    blind = replace(SMALL, cannot_tell=tuple(CannotTell(rule, needs) for rule in ("host-sync", "fp32-matmul")))
    said = text.render(blind)
    assert said.count(needs) == 1
    assert "\n      host-sync, fp32-matmul\n" in said


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_but_a_diffs_is_wider_than_asked(width: int) -> None:
    for events in (journals.fixed(), journals.cpu(), journals.healthy(), journals.failed()):
        prose, _, _ = text.render(fold(events), width=width).partition("\nDiff")
        assert max(map(len, prose.splitlines())) <= width


def test_colour_adds_escapes_and_changes_no_word() -> None:
    state = fold(journals.fixed())
    coloured = text.render(state, colour=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "\x1b[" in coloured
    assert [line.rstrip() for line in plain.splitlines()] == text.render(state).splitlines()


def test_a_healthy_run_gets_good_news_and_nothing_to_do() -> None:
    said = text.render(fold(journals.healthy()))
    assert "✓ Healthy: nothing found here could give back 5 % of a step." in said
    assert "118 ms (98 %) is compute" in said
    assert "Fix this first" not in said
    assert "Next" not in said


def test_good_news_says_what_could_not_be_decided() -> None:
    unsure = replace(SMALL, findings=())
    assert "1 rule could not decide on this recording." in " ".join(text.render(unsure).split())


def test_what_may_give_back_more_but_is_not_sure_to_is_named_and_not_called_unexplained() -> None:
    """Noise or the profiler's own cost make a weighty figure a note: it explains, and may be worth a look."""
    note = replace(SMALL.findings[0], severity=Severity.NOTE, recoverable_ns=0, share=0.0, rank=1)
    note = replace(note, possible_ns=1_760_000, possible_share=0.088)
    copies = Accounting(compute=1_000_000, exposed_copy=39_000_000)
    said = " ".join(text.render(replace(SMALL, findings=(note,), accounting=copies)).split())
    assert "? Nothing found here is sure to give back 5 % of a step." in said
    assert f"`{note.rule}` on rank 1 may: " in said
    assert "No rule explains" not in said


def test_a_doubtful_gain_is_told_with_what_would_confirm_it() -> None:
    note = replace(SMALL.findings[0], severity=Severity.LOW, share=0.055, confirm="trace more steps")
    said = " ".join(text.render(replace(SMALL, findings=(note,))).split())
    assert f"`{note.rule}` may: " in said
    assert "to confirm trace more steps" in said


def test_a_run_of_which_more_may_be_had_back_is_not_called_healthy_however_much_it_computes() -> None:
    note = replace(SMALL.findings[0], severity=Severity.NOTE, share=0.088)
    busy = replace(SMALL, findings=(note,), accounting=Accounting(compute=39_000_000, exposed_copy=1_000_000))
    said = " ".join(text.render(busy).split())
    assert "? Nothing found here is sure to give back 5 % of a step." in said
    assert "Healthy" not in said


def test_a_run_that_no_rule_explains_is_not_called_healthy() -> None:
    copies = replace(SMALL, findings=(), accounting=Accounting(compute=1_000_000, exposed_copy=39_000_000))
    said = " ".join(text.render(copies).split())
    assert "? Nothing found here could give back 5 % of a step." in said
    assert "only 1.00 ms (2.5 %) is compute. No rule explains the 39.0 ms of exposed copies yet." in said
    assert "Healthy" not in said
    assert "Next" not in said


def test_no_steps_is_neither_healthy_nor_ill() -> None:
    said = text.render(replace(SMALL, steps=Steps(0, None), accounting=Accounting(), findings=()))
    assert "No training step was found in it, so nothing can be said per step." in said
    assert "Healthy" not in said
    assert "Fix this first" not in said


def test_steps_that_vary_show_their_mean_too() -> None:
    """What a finding gives back is of the mean step: beside a median far from it, it would read as more than a step."""
    diagnosis = tinygpt.gpu_diagnosis()
    median = diagnosis.steps.median_ns
    assert median is not None
    even = replace(diagnosis, steps=replace(diagnosis.steps, mean_ns=round(1.05 * median)))
    uneven = replace(diagnosis, steps=replace(diagnosis.steps, mean_ns=3 * median))
    assert "on average" not in text.render(even)
    assert f"{format_ns(3 * median)} on average" in text.render(uneven)


def test_steps_of_which_only_the_length_is_known_are_not_said_to_compute_nothing() -> None:
    """A program that ended before its trace: missing is unknown, never zero."""
    logged = replace(SMALL, findings=(), accounting=Accounting(idle={"unknown": 18_000_000, "input": 2_000_000}))
    said = " ".join(text.render(logged).split())
    assert "only their length was recorded, not the work in them" in said
    assert "not recorded 18.0 ms" in said
    assert "idle" not in said
    assert "compute" not in said
    traced = replace(SMALL, findings=(), accounting=Accounting(compute=15_000_000, idle={"unknown": 5_000_000}))
    assert "unexplained idle" in text.render(traced)


def test_a_program_of_which_nothing_was_seen_has_no_ranks_and_no_device() -> None:
    nothing = Diagnosis(1, (), 0, None, Steps(0, None), Accounting())
    said = text.render(replace(fold(journals.failed()), diagnosis=nothing, ended=None))
    assert "No training step was seen" in said
    assert "0 ranks" not in said
    assert "no device" not in said


def test_a_program_that_failed_before_its_first_step_is_told_so_once() -> None:
    warning = "no training step was seen before it failed: what the program says above is what to mend first"
    nothing = Diagnosis(1, (), 0, None, Steps(0, None), Accounting(), warnings=(warning,))
    ended = RunEnded(returncode=1, exit_code=3, message="the program failed with exit code 1")
    said = " ".join(text.render(replace(fold(journals.failed()), diagnosis=nothing, ended=ended)).split())
    assert said.count("The program failed with exit code 1.") == 1
    assert said.lower().count("no training step") == said.count("failed with") == 1


@pytest.mark.parametrize(
    ("confidence", "words"),
    [
        (Confidence.MEASURED, "15.0 ms of each step (75 %), measured"),
        (Confidence.BOUND, "at most 15.0 ms of each step (75 %)"),
        (Confidence.HINT, "perhaps 15.0 ms of each step (75 %), a hint"),
    ],
)
def test_a_gain_says_what_it_rests_on(confidence: Confidence, words: str) -> None:
    (finding,) = SMALL.findings
    assert words in text.render(replace(SMALL, findings=(replace(finding, confidence=confidence),)))


def test_a_fix_without_effect_is_reported_as_that() -> None:
    verdict = Verdict(
        "fused-optimizer",
        Decision.NO_CHANGE,
        "No difference.",
        saving=Interval(0.001, -0.003, 0.006),
        saving_ns=20_000,
        predicted_ns=1_300_000,
    )
    said = text.render(State(diagnosis=SMALL, verdicts=(verdict,)))
    assert "≈ fused-optimizer    1.30 ms  20.0 µs  +0.1 % [−0.3, +0.6]       no change" in said
    assert "diagnose apply" not in said


def test_kept_fixes_end_in_the_diff_and_the_command_that_writes_it() -> None:
    said = text.render(fold(journals.fixed()))
    assert "60.1 ms → 23.1 ms per step: 2.60 times the throughput" in said
    assert "3 runs of each; numbers bit for bit equal: 125 losses and gradients" in said
    assert said.index("+        num_workers=4,") < said.index("Next   diagnose apply")


def test_files_below_the_working_directory_are_named_from_there() -> None:
    said = text.render(fold(journals.fixed()))
    assert "train.py:27" in said
    assert "/home/user" not in said


def test_a_program_that_failed_is_told_by_its_end() -> None:
    assert "train.py ended with exit code 1 before its first step." in text.render(fold(journals.failed()))


_words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60)
_places = st.builds(
    Place, _words, st.integers(-1, 10**6), st.none() | _words, st.none() | _words, st.none() | st.floats(0, 1)
)
_numbers = st.integers(-(10**15), 10**15) | st.floats(-1e12, 1e12)
_findings = st.builds(
    Finding,
    rule=_words,
    severity=st.sampled_from(Severity),
    rank=st.none() | st.integers(0, 4096),
    recoverable_ns=st.integers(0, 10**13),
    share=st.floats(0, 1),
    confidence=st.sampled_from(Confidence),
    summary=_words,
    evidence=st.lists(
        st.builds(Evidence, _words, _numbers, st.sampled_from(["ns", "bytes", "share", "count", ""])), max_size=3
    ).map(tuple),
    where=st.lists(_places, max_size=3).map(tuple),
    fixers=st.lists(_words, max_size=2).map(tuple),
    confirm=st.none() | _words,
)
_diagnoses = st.builds(
    Diagnosis,
    schema=st.just(1),
    source=st.lists(_words, max_size=3).map(tuple),
    ranks=st.integers(0, 5),
    device=st.none() | _words,
    steps=st.builds(Steps, st.integers(0, 9), st.none() | st.integers(0, 10**12), found_by=_words),
    accounting=st.builds(
        Accounting,
        st.integers(0, 10**10),
        st.integers(0, 10**10),
        st.integers(0, 10**10),
        st.dictionaries(st.sampled_from(["input", "sync", "unknown", "new-cause"]), st.integers(0, 10**10)),
    ),
    findings=st.lists(_findings, max_size=3).map(tuple),
    cannot_tell=st.lists(st.builds(CannotTell, _words, _words), max_size=2).map(tuple),
    warnings=st.lists(_words, max_size=2).map(tuple),
)


@settings(max_examples=40)
@given(diagnosis=_diagnoses, width=st.integers(0, 130))
def test_any_diagnosis_can_be_reported_in_any_format(diagnosis: Diagnosis, width: int) -> None:
    assert text.render(diagnosis, width=width, colour=True)
    for report in formats().values():
        assert report.render(diagnosis)
        assert report.render(State(diagnosis=diagnosis))


def test_a_run_of_which_nothing_is_known_can_be_reported() -> None:
    for report in formats().values():
        assert report.render(State())


@pytest.mark.parametrize("decision", Decision)
def test_every_decision_can_be_reported_without_any_measurement(decision: Decision) -> None:
    state = State(diagnosis=SMALL, verdicts=(Verdict("a-fix", decision, "Said so."),))
    for report in formats().values():
        assert "a-fix" in report.render(state)


def test_fixes_that_rest_on_one_common_trial_are_told_of_once() -> None:
    word = "tried with 1 other at once, which together gave: 40 % of the step saved (8 pairs, +39.0 % … +41.0 %)"
    common = Verdict("one", Decision.KEPT, word, resolution=0.01)
    fixes = (common, replace(common, fixer="two", setting={"knob": 4}))
    own = Verdict("three", Decision.KEPT, word, saving=Interval(0.1, 0.09, 0.11))
    said = text.render(State(diagnosis=SMALL, verdicts=(*fixes, own)))
    assert "one, two (knob=4)  kept" in said
    assert "three  kept" in said
    assert said.count("with the others") == 2
    assert said.count("Tried with 1 other") == 1


def test_a_fix_that_is_compared_with_nothing_lets_the_program_run() -> None:
    rescued = Verdict("memory-budget", Decision.KEPT, "the program runs; without it the program runs out of memory")
    for render in (text.render, markdown.render):
        said = render(State(diagnosis=SMALL, verdicts=(rescued,)))
        assert "lets it run" in said
        assert "with the others" not in said


def test_of_a_run_that_was_interrupted_no_patch_can_be_applied() -> None:
    kept = Verdict("one", Decision.KEPT, "half of the step saved", saving=Interval(0.5, 0.4, 0.6))
    accepted = PatchAccepted(diff="--- a\n+++ b\n", fixers=["one"])
    going_on = State(diagnosis=SMALL, verdicts=(kept,), patch=accepted)
    interrupted = replace(going_on, ended=RunEnded(returncode=0, exit_code=130, message="interrupted"))
    for render in (text.render, markdown.render, html.render):
        assert "diagnose apply" in render(replace(going_on, ended=RunEnded(returncode=0, exit_code=0)))
        for state in (going_on, interrupted):
            assert "diagnose apply" not in render(state)
            assert "there is no patch to apply" in render(state)


def test_a_common_trial_that_kept_nothing_is_told_of() -> None:
    started = TrialStarted(fixer=TOGETHER, setting={}, predicted_ns=1, summary="one, two, three, at once", diff="")
    slower = Verdict(TOGETHER, Decision.SLOWER, "slower by 4.0 % of the step (8 pairs, −5.0 % … −3.0 %)")
    own = Verdict("one", Decision.NO_CHANGE, "no measurable saving")
    state = State(diagnosis=SMALL, verdicts=(own,), trials=(TrialState(started, (), slower),))
    for said in (text.render(state), markdown.render(state)):
        assert "one, two, three, at once: slower, slower by 4.0 %" in " ".join(said.split())
        assert "they were then tried apart." in " ".join(said.split())
    kept = replace(slower, decision=Decision.KEPT)
    assert "tried apart" not in text.render(replace(state, trials=(TrialState(started, (), kept),)))


def test_a_finding_that_no_fixer_edits_says_where_to_read_what_helps() -> None:
    finding = Finding("cpu-contention", Severity.HIGH, None, 1_000_000, 0.1, Confidence.HINT, "no core is free")
    told = "\n".join(line.plain for line in finding_lines(1, finding, None, 80))
    assert "by hand     `diagnose explain cpu-contention` says what helps" in told
    told = "\n".join(line.plain for line in finding_lines(1, replace(finding, fixers=("loader-workers",)), None, 80))
    assert "by hand" not in told
