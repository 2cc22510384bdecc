"""Progress as plain lines: one event in, at most one line out, quiet by the events' own times."""

from __future__ import annotations

import journals

from diagnose.model import Accounting, Confidence, Decision, Diagnosis, Finding, Interval, Severity, Steps, Verdict
from diagnose.report.terminal.progress import Progress
from diagnose.session import (
    AnyEvent,
    ControlMeasured,
    DiagnosisMade,
    PhaseChanged,
    RunEnded,
    RunStarted,
    StepsSeen,
    TrialBlock,
    TrialStarted,
    VerdictReached,
    fold,
)
from diagnose.units import NS_PER_MS, NS_PER_S


def lines(events: list[AnyEvent]) -> list[str]:
    """Everything that is said of some events."""
    progress = Progress()
    return [line for event in events if (line := progress(event)) is not None]


def steps(at_s: int, rank: int = 0) -> StepsSeen:
    """Ten steps of 100 ms, 40 ms of each in the loader, that end at `at_s` seconds."""
    ends = [at_s * NS_PER_S - (9 - index) * 100 * NS_PER_MS for index in range(10)]
    return StepsSeen(at_ns=ends[-1], rank=rank, ends_ns=ends, input_ns=[40 * NS_PER_MS] * 10)


def test_steps_are_told_every_five_seconds_only() -> None:
    assert lines([steps(at_s) for at_s in range(10, 21)]) == [
        "step 10: 100 ms per step, 40 % of it waiting for input",
        "step 60: 100 ms per step, 40 % of it waiting for input",
        "step 110: 100 ms per step, 40 % of it waiting for input",
    ]


def test_one_rank_speaks_for_all() -> None:
    assert len(lines([steps(10, rank=0), steps(20, rank=1)])) == 1


def test_a_trial_that_begins_anew_says_why() -> None:
    pairs: list[AnyEvent] = [
        TrialBlock(at_ns=at * NS_PER_MS, fixer="a-fix", pair=pair, original_ns=2 * NS_PER_MS, patched_ns=NS_PER_MS)
        for at, pair in enumerate([0, 1, 0])
    ]
    assert lines(pairs) == [
        "  a-fix, pair 1: 2.00 ms → 1.00 ms",
        "  a-fix: a step of many takes far longer, so the blocks are made to hold several; anew",
    ]


def test_a_verdict_that_whole_runs_confirm_is_told_once() -> None:
    started: AnyEvent = TrialStarted(at_ns=0, fixer="a-fix", setting={}, predicted_ns=None, summary="", diff="")
    kept: AnyEvent = VerdictReached(at_ns=1, verdict=Verdict("a-fix", Decision.KEPT, "1 % of the step saved"))
    refused: AnyEvent = VerdictReached(at_ns=2, verdict=Verdict("a-fix", Decision.FAILED, "another file is left"))
    compared: AnyEvent = PhaseChanged(at_ns=1, phase="comparing whole runs", detail="output, files and exit")
    assert lines([started, kept, compared, kept]) == [
        "✓ a-fix: kept",
        "comparing whole runs: output, files and exit",
    ]
    assert len(lines([started, kept, refused])) == 2  # whole runs refused it
    assert lines([started, kept, started, kept]) == ["✓ a-fix: kept"] * 2  # another trial of it


def test_a_phase_that_goes_on_gives_a_sign_of_life_every_five_seconds() -> None:
    against = "original against itself"
    first: AnyEvent = PhaseChanged(at_ns=0, phase="measuring", detail=against)
    pairs: list[AnyEvent] = [
        PhaseChanged(at_ns=second * NS_PER_S, phase="measuring", detail=f"{against}, pair {second}")
        for second in range(1, 12)
    ]
    other: AnyEvent = PhaseChanged(at_ns=15 * NS_PER_S, phase="measuring", detail="something else")
    assert lines([first, *pairs, other]) == [
        f"measuring: {against}",
        f"measuring: {against}, pair 5",
        f"measuring: {against}, pair 10",
        "measuring: something else",
    ]


def test_what_a_phase_is_at_is_told_once_in_five_seconds() -> None:
    """Thirty fixers are asked in three seconds."""
    looking: list[AnyEvent] = [
        PhaseChanged(at_ns=at * NS_PER_S // 10, phase="looking at each fix", detail=f"fix {at}") for at in range(60)
    ]
    assert lines(looking) == ["looking at each fix: fix 0", "looking at each fix: fix 50"]


def test_a_phase_is_told_with_its_detail() -> None:
    events: list[AnyEvent] = [
        PhaseChanged(phase="tracing 4 steps"),
        PhaseChanged(phase="trying fixes", detail="2 of 3"),
    ]
    assert lines(events) == ["tracing 4 steps", "trying fixes: 2 of 3"]


def test_a_check_of_a_kept_fix_is_told_as_one() -> None:
    check = TrialStarted(fixer="allow-tf32", setting={}, predicted_ns=None, summary="leave-one-out check", diff="")
    phase = PhaseChanged(phase="leave-one-out check", detail="is allow-tf32 still needed beside use-sdpa?")
    assert lines([check, phase]) == ["leave-one-out check: is allow-tf32 still needed beside use-sdpa?"]
    state = fold([check, phase])
    assert state.phase == phase


def test_what_was_not_measured_has_its_reason_in_the_line() -> None:
    verdicts = (
        Verdict("late", Decision.NOT_TRIED, "the budget leaves 1 s; more of it"),
        Verdict("broken", Decision.FAILED, "it raised"),
        Verdict("joint", Decision.KEPT, "tried with 8 others at once"),
    )
    assert lines([VerdictReached(verdict=verdict) for verdict in verdicts]) == [
        "– late: not tried: the budget leaves 1 s",
        "✗ broken: failed: it raised",
        "✓ joint: kept",
    ]


def test_what_is_a_bound_is_called_one_and_what_is_unknown_is_no_zero() -> None:
    told = [
        *lines([_diagnosed_as(Confidence.BOUND, 5_000_000)]),
        *lines([_diagnosed_as(Confidence.HINT, 0)]),
    ]
    assert told == [
        "diagnosed: 1 finding; leaking-memory could give back at most 5.00 ms of each step (10 %)",
        "diagnosed: 1 finding; leaking-memory, its cost is not known here",
    ]


def test_what_was_found_once_is_told_once_though_its_figure_shifts() -> None:
    first, shifted = _diagnosed_as(Confidence.BOUND, 5_000_000), _diagnosed_as(Confidence.BOUND, 5_100_000)
    other = _diagnosed_as(Confidence.HINT, 0)
    assert len(lines([first, first, shifted])) == 1
    assert len(lines([first, other, first])) == 3


def test_a_run_without_a_step_leaves_it_to_the_report_to_say_so() -> None:
    nothing = Diagnosis(1, (), 0, None, Steps(0, None), Accounting())
    assert lines([DiagnosisMade(diagnosis=nothing)]) == []


def _diagnosed_as(confidence: Confidence, recoverable_ns: int) -> DiagnosisMade:
    finding = Finding("leaking-memory", Severity.NOTE, None, recoverable_ns, 0.1, confidence, "It grows.")
    steps = Steps(4, 50_000_000, 50_000_000, 200_000_000, "profiler marks")
    made = Diagnosis(1, ("a",), 1, None, steps, Accounting(compute=50_000_000), (finding,))
    return DiagnosisMade(diagnosis=made)


def test_a_whole_run_tells_its_story_in_few_lines() -> None:
    told = lines(journals.fixed())
    assert "diagnosed: 3 findings; input-bound could give back 29.4 ms of each step (47 %), measured" in told
    assert "✓ loader-workers: kept, +46.1 % [+45.2, +47.0] of a step" in told
    assert "≈ fused-optimizer: no change, +0.1 % [−0.5, +0.7] of a step" in told
    assert told[-1] == "final: 60.1 ms → 23.1 ms per step, each program alone, without diagnose"
    assert len(told) < 50
    assert all("\n" not in line for line in told)


def test_what_the_machine_was_too_restless_to_tell_is_undecided_here_as_in_the_report() -> None:
    verdict = Verdict("a-fix", Decision.NO_CHANGE, "no measurable saving", saving=Interval(0.02, -0.02, 0.06))
    for resolution, said in ((0.18, "undecided"), (0.01, "no change")):
        control = ControlMeasured(resolution=resolution, pairs=8, generations=2, step_ns=NS_PER_MS)
        assert lines([control, VerdictReached(verdict=verdict)])[1] == f"≈ a-fix: {said}, +2.0 % [−2.0, +6.0] of a step"


def test_a_dry_run_tells_what_it_would_try() -> None:
    verdict = Verdict("allow-tf32", Decision.NOT_TRIED, "allow TF32 for matrix products")
    started = RunStarted(command="fix", program="train.py", cwd="/", version="1", pid=1, dry=True)
    assert lines([started, VerdictReached(verdict=verdict)])[1:] == [
        "would try allow-tf32: allow TF32 for matrix products"
    ]
    assert lines([VerdictReached(verdict=verdict)]) == ["– allow-tf32: not tried: allow TF32 for matrix products"]


def test_of_the_words_of_a_program_that_failed_the_command_says_the_rest() -> None:
    ended = RunEnded(returncode=-15, exit_code=3, message="the program fails in a copy\nValueError: x\nwhat to do")
    assert lines([ended]) == ["the program fails in a copy"]
    assert lines([RunEnded(returncode=0, exit_code=0, message="")]) == []


def test_a_phase_that_comes_again_before_a_trial_goes_on_is_not_told_again() -> None:
    progress = Progress(every_ns=0)
    looking = [PhaseChanged(phase="looking at each fix", detail=fix) for fix in ("a", "b", "a", "b")]
    assert [progress(event) for event in looking] == ["looking at each fix: a", "looking at each fix: b", None, None]
    progress(TrialStarted(fixer="a", setting={}, predicted_ns=None, summary="", diff=""))
    assert progress(looking[0]) == "looking at each fix: a"
