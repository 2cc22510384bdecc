"""When a quiet run may be called healthy: it is near the practical ceiling of a program that trains the same."""

from __future__ import annotations

from dataclasses import replace

from diagnose.model import (
    Accounting,
    CannotTell,
    Confidence,
    Diagnosis,
    Finding,
    Ladder,
    PracticalCeiling,
    Severity,
    Steps,
    StepWork,
)
from diagnose.report.terminal import text
from diagnose.report.wording.health import is_healthy, quiet_news, unexplained
from diagnose.report.wording.run_title import accounting_title

MS = 1_000_000


def run(same_training_ms: float | None) -> Diagnosis:
    """A step of 100 ms that computes for 95 of them, without a finding; such a program could take this long."""
    steps = Steps(1, 100 * MS, 100 * MS, 100 * MS, "optimizer")
    spent = Accounting(compute=95 * MS, idle={"dispatch": 5 * MS})
    ladder = None
    if same_training_ms is not None:
        parts = (60 * MS, 55 * MS, 4 * MS, 1 * MS, 0.5, 80 * MS, 15 * MS, round(same_training_ms * MS))
        apart = {"products": 25 * MS, "other kernels": 10 * MS, "no compute": 5 * MS}
        ladder = Ladder(100 * MS, 0.3, (), PracticalCeiling(*parts), apart)
    return Diagnosis(1, ("rank0",), 1, "NVIDIA H200", steps, spent, has_device=True, ladder=ladder)


def test_a_run_within_a_tenth_of_its_ceiling_is_healthy() -> None:
    assert is_healthy(run(91))
    assert quiet_news(run(91)).startswith("Healthy: nothing found here could give back 5 % of a step.")
    assert "could take" not in quiet_news(run(91))


def test_a_run_above_it_is_not_and_what_lies_above_is_named() -> None:
    assert not is_healthy(run(70))
    said = quiet_news(run(70))
    assert "Healthy" not in said
    assert (
        "A program that computes the same could take 70.0 ms, 30 % less: 25.0 ms of products lie above the practical "
        "ceiling. No rule explains it yet."
    ) in said


def test_without_a_ceiling_nobody_knows_how_near_it_is() -> None:
    assert not is_healthy(run(None))
    assert "How near that comes to what the hardware can do is not known: operators' shapes were" in quiet_news(
        run(None)
    )
    most = StepWork(int(1e12), 1e13, 1e15, 0.3, 0.88, "data sheet")
    assert "is not known: of 12 % of the time of its products, shapes are missing." in quiet_news(
        replace(run(None), work=most)
    )
    blind = replace(run(None), has_device=False)
    assert "no work of a device was recorded" in quiet_news(blind)


def waiting(**ms: int) -> Diagnosis:
    """Two steps of 100 ms with one weighty finding, which does not claim these milliseconds of each."""
    found = Finding("input-bound", Severity.HIGH, None, 12 * MS, 0.12, Confidence.MEASURED, "waits for the loader")
    comm = ms.pop("exposed_comm", 0)
    left = Accounting(compute=80 * MS, exposed_comm=2 * comm * MS, idle={name: 2 * ns * MS for name, ns in ms.items()})
    steps = Steps(2, 100 * MS, 100 * MS, 200 * MS, "optimizer")
    spent = Accounting(compute=40 * MS, exposed_comm=comm * MS, idle={"dependency": (60 - comm) * MS})
    return Diagnosis(1, ("rank0",), 1, "NVIDIA H200", steps, spent, (found,), has_device=True, unclaimed=left)


def test_much_time_that_no_finding_claims_is_named_beside_the_findings() -> None:
    assert unexplained(waiting(dependency=61, dispatch=3)) == (
        "No finding explains the 61.0 ms of dependency wait (61 % of the average traced step): "
        "work was launched, and nothing that was recorded holds it up."
    )
    assert unexplained(waiting(python=61)) == (
        "No finding explains the 61.0 ms of Python (61 % of the average traced step)."
    )
    assert unexplained(waiting(dependency=19, dispatch=19)) == ""


def test_where_the_rule_of_a_class_could_not_decide_it_is_named() -> None:
    lacking = (CannotTell("recompiling", "three steps or more"), CannotTell("gc-pause", "a live run"))
    compiling = replace(waiting(compile=61), cannot_tell=lacking)
    assert unexplained(compiling) == (
        "No finding explains the 61.0 ms of compiling (61 % of the average traced step); "
        "`recompiling` could not decide."
    )
    assert "could not decide" not in unexplained(replace(waiting(python=61), cannot_tell=lacking))


def test_communication_that_may_be_waiting_is_an_open_question_and_what_answers_it_is_said() -> None:
    lacking = (CannotTell("straggler", "the recordings of the other 7 ranks"),)
    asked = (
        "Whether the 30.0 ms of exposed communication{} are waiting for other ranks, only their recordings tell: "
        "`diagnose analyze FOLDER` reads those of all ranks."
    )
    of_step = " (30 % of the average traced step)"
    assert unexplained(replace(waiting(exposed_comm=30), cannot_tell=lacking)) == asked.format(of_step)
    assert "No finding explains the 30.0 ms of exposed communication" in unexplained(waiting(exposed_comm=30))
    assert asked.format("") in quiet_news(replace(waiting(exposed_comm=30), findings=(), cannot_tell=lacking))


def test_idle_time_of_unknown_cause_has_one_name() -> None:
    spent = Accounting(compute=45 * MS, idle={"unknown": 55 * MS})
    assert "in the 55.0 ms of unexplained idle." in quiet_news(replace(run(None), accounting=spent))


def undecided(steps: str, spent: Accounting, *rules: str) -> str:
    """What is said of a quiet run whose steps were found so, and in which these rules could not decide."""
    found = Steps(1, spent.total_ns, spent.total_ns, spent.total_ns, steps)
    lacking = tuple(CannotTell(rule, "a longer recording") for rule in rules)
    return quiet_news(replace(run(None), steps=found, accounting=spent, cannot_tell=lacking))


def test_a_recording_in_which_nothing_repeats_may_be_start_up() -> None:
    spent = Accounting(compute=10 * MS, idle={"dispatch": 3_000 * MS})
    said = undecided("whole trace", spent)
    assert "Of the 3.01 s counted, only 10.0 ms (0.3 %) is compute." in said
    assert (
        "The 3.00 s of framework dispatch may be start-up, which is paid once: nothing in the recording repeats. "
        "Record several steps after the first ones."
    ) in said
    assert "start-up" not in undecided("optimizer", spent)


def test_dispatch_and_waits_for_the_device_name_the_rule_that_could_not_decide() -> None:
    for kind, rule in (("dispatch", "launch-bound"), ("sync", "host-sync")):
        spent = Accounting(compute=10 * MS, idle={kind: 90 * MS})
        assert undecided("optimizer", spent, rule).count(f"; `{rule}` could not decide.") == 1


def test_idle_time_of_unknown_cause_is_not_said_to_lack_a_rule() -> None:
    said = undecided("whole trace", Accounting(exposed_copy=10 * MS, idle={"unknown": 90 * MS}))
    assert "Of the 100 ms counted, nothing is compute." in said
    assert "The recording does not say what was waited for in the 90.0 ms of unexplained idle." in said


def test_a_recording_in_which_nothing_repeats_is_not_called_a_step() -> None:
    spent = Accounting(compute=10 * MS, idle={"dispatch": 3_000 * MS})
    found = Steps(1, spent.total_ns, spent.total_ns, spent.total_ns, "whole trace")
    whole = replace(run(None), steps=found, accounting=spent)
    assert accounting_title(whole) == "Where the recording's 3.01 s go"
    assert "recording = 100 %" in text.render(whole)
    step = replace(whole, steps=replace(found, found_by="optimizer"))
    assert accounting_title(step) == "Where a step's 3.01 s go"
    assert "median step = 100 %" in text.render(step)
