"""What a log of steps says of stalls that come at regular distances, beyond what a drawing can hold."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diagnose import plugins
from diagnose.engine import diagnose
from diagnose.measure import Measures
from diagnose.measure.steps.outlier_steps import StepTimes, stalls_of
from diagnose.model import Confidence, Finding, Severity
from diagnose.rule import CannotTell, Claim, Trace, drawn
from diagnose.trace.schema import RangeKind, Ranges, StepLog
from diagnose.units import format_ns

MS = 1_000_000
RULE = plugins.load().rules["periodic-stall"]


def logged(lengths: list[float], **known: Any) -> Trace:
    """A live run that was not traced: the log of its steps alone."""
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    trace = Trace(source="log", step_log=StepLog.build({"end_ns": ends, "input_ns": np.zeros(len(ends), np.int64)}))
    return replace(trace, **known)


def every(period: int, long: float, steps: int = 120, usual: float = 10.0) -> list[float]:
    return [long if step % period == period - 1 else usual for step in range(steps)]


def claims(trace: Trace) -> list[Claim]:
    return [answer for answer in RULE.check(Measures(trace)) if isinstance(answer, Claim)]


def test_a_live_run_with_few_steps_is_not_sent_to_a_live_run() -> None:
    (answer,) = RULE.check(Measures(logged([10.0] * 12)))
    assert isinstance(answer, CannotTell)
    assert answer.needs.startswith("the lengths of more steps: this run logged 12")


def finding(trace: Trace) -> Finding | None:
    found = {one.rule: one for one in diagnose([trace], plugins.load()).findings}
    return found.get("periodic-stall")


def test_the_period_and_the_average_cost_are_told() -> None:
    (claim,) = claims(logged(every(20, 50.0)))
    assert "one step in 20 takes 50.0 ms instead of 10.0 ms" in claim.summary
    assert abs(claim.recoverable_ns / (120 * MS) - 40 / 20) < 0.3


def test_a_period_is_seen_although_a_window_hides_some_of_its_steps() -> None:
    """Of a log of 34 steps, as a run has that is steady early: the 10th, the 15th and the 30th were not traced."""
    lengths = np.array([300.0 if step % 5 == 4 else 10.0 for step in range(34)])
    usable = np.array([9 <= step < 17 or step >= 28 for step in range(34)])
    stalls = stalls_of(times(lengths.tolist(), ~usable), 0)
    assert stalls is not None
    assert (stalls.period, stalls.rows.tolist()) == (5, [9, 14, 29])
    lengths[31] = 300.0  # another, that comes at no distance
    assert stalls_of(times(lengths.tolist(), ~usable), 0) is None


def test_two_long_steps_are_no_period() -> None:
    assert claims(logged(every(20, 50.0, steps=50))) == []


def test_long_steps_at_irregular_distances_are_no_period() -> None:
    lengths = [50.0 if step in (15, 22, 60, 64, 101) else 10.0 for step in range(120)]
    assert claims(logged(lengths)) == []


def disturbed(lengths: list[float]) -> list[float]:
    """The same on a machine that is shared: now and then somebody else makes four steps two to four times as long."""
    chance = np.random.default_rng(5)
    others = np.repeat(chance.random(len(lengths) // 4) < 0.15, 4)
    return [one + (10 + 20 * chance.random()) * other for one, other in zip(lengths, others.astype(float), strict=True)]


def test_a_period_is_seen_among_steps_that_are_long_by_chance() -> None:
    (claim,) = claims(logged(disturbed(every(20, 100.0, steps=400))))
    assert "one step in 20 takes" in claim.summary
    assert claim.recoverable_ns / (400 * MS) == pytest.approx(90 / 20, rel=0.2)


def test_one_step_that_is_long_by_chance_hides_no_period_of_a_short_log() -> None:
    """Six phases of 30 times the length, one of which a rollout of reinforcement learning is, and a step beside."""
    lengths = every(16, 600.0, steps=112, usual=20.0)
    lengths[15] = 20.0  # the traced window
    lengths[89] = 150.0
    (claim,) = claims(logged(lengths))
    assert "one step in 16 takes" in claim.summary


def test_steps_that_are_long_by_chance_alone_are_no_period() -> None:
    assert claims(logged(disturbed([10.0] * 400))) == []


def test_the_log_of_a_long_run_takes_no_more_memory_than_it_has_steps() -> None:
    """Days of training have a million steps: nothing may grow with the square of those that are long."""
    chance = np.random.default_rng(3)
    trace = logged(np.where(chance.random(40_000) < 0.15, 18 + 8 * chance.pareto(1.2, 40_000), 10.0).tolist())
    tracemalloc.start()
    try:
        assert claims(trace) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 40_000 * 1_000


@pytest.mark.parametrize("seed", [109, 1062, 2157])
def test_one_step_that_outweighs_all_others_does_not_make_a_period_of_its_neighbours(seed: int) -> None:
    """A long tail: some steps are long by chance, and of these some are many times as long as the others."""
    chance = np.random.default_rng(seed)
    lengths = np.where(chance.random(150) < 0.25, 18 + 8 * chance.pareto(1.2, 150), 10.0)
    assert claims(logged(lengths.tolist())) == []


def test_fewer_long_steps_than_their_period_lets_expect_are_counted() -> None:
    """Of 39 steps five are long, four of them three steps apart: not one step in three."""
    lengths = [50.0 if step in (20, 23, 26, 29, 59) else 10.0 for step in range(60)]
    (claim,) = claims(logged(lengths))
    assert "5 of 49 steps take 50.0 ms instead of 10.0 ms" in claim.summary


def test_three_long_steps_are_a_period_only_at_exactly_the_same_distance() -> None:
    """Of three by chance, one log in eleven has them within a tenth of it."""
    for last, found in ((80, 1), (81, 0)):
        lengths = [50.0 if step in (40, 60, last) else 10.0 for step in range(120)]
        assert len(claims(logged(lengths))) == found


def test_any_distance_is_near_a_multiple_of_three() -> None:
    lengths = [50.0 if step in (20, 23, 27, 31, 33, 50) else 10.0 for step in range(60)]
    assert claims(logged(lengths)) == []


def test_a_host_that_catches_up_has_lost_nothing() -> None:
    """A wait every twentieth step of a host that is ahead: one step seems longer, the next is as much shorter."""
    lengths = every(20, 19.0)
    for step in range(20, 120, 20):
        lengths[step] = 1.0
    assert claims(logged(lengths)) == []


def ahead(steps: int = 120, extra: float = 0.0) -> list[float]:
    """Steps of 10 ms of the device under a host that needs 2 ms, until its queue is full, and reads every twentieth."""
    free = [2.0] * 14 + [10.0] * 5
    return [*free, 200.0 - sum(free) + extra] * (steps // 20)


def times(lengths: list[float], unusable: slice | npt.NDArray[np.bool_] = slice(0)) -> StepTimes:
    length = (np.array(lengths) * MS).astype(np.int64)
    ends = np.cumsum(length)
    usable = np.ones(len(length), np.bool_)
    usable[unusable] = False
    return StepTimes(ends - length, ends, usable, live=True)


def test_a_host_that_was_ahead_for_many_steps_has_lost_nothing_by_its_wait() -> None:
    assert stalls_of(times(ahead()), 10 * MS) is None


def test_what_a_long_step_costs_beyond_a_wait_for_what_was_ahead_is_told() -> None:
    stalls = stalls_of(times(ahead(extra=100.0)), 10 * MS)
    assert stalls is not None
    assert stalls.period == 20
    assert stalls.cost_ns.tolist() == [100 * MS] * 6


def test_what_was_ahead_is_not_known_where_the_profiler_was_at_work_before_the_next_long_step() -> None:
    """The long steps whose next ones were seen took as long as the host was ahead: so did the others."""
    assert stalls_of(times(ahead(steps=80), unusable=slice(42, 48)), 10 * MS) is None


@pytest.mark.parametrize("device_ms", [9.8, 10.0, 10.2, 10.5])
def test_steps_as_long_as_the_work_that_a_profiler_saw_are_not_ahead_of_it(device_ms: float) -> None:
    """A checkpoint every 500 steps: a fiftieth of each step would be more than it takes."""
    stalls = stalls_of(times(every(500, 100.0, steps=3000)), round(device_ms * MS))
    assert stalls is not None
    assert (stalls.cost_ns / MS).tolist() == pytest.approx([90.0] * 6, rel=0.06)


def test_the_loader_at_the_start_of_an_epoch_is_named() -> None:
    lengths = every(40, 90.0, steps=200)
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    late = ends[39::40]
    ranges = Ranges.build(
        {"start_ns": late - 85 * MS, "end_ns": late - 8 * MS, "kind": [RangeKind.INPUT] * 5, "name": [0] * 5}
    )
    (claim,) = claims(logged(lengths, ranges=ranges, names=("DataLoader.__next__",)))
    assert "an epoch starts" in claim.summary
    assert claim.fixers is not None
    assert "persistent-workers" in claim.fixers


def test_a_loader_whose_workers_take_turns_is_left_to_another_rule() -> None:
    lengths = every(4, 90.0, steps=120)
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    late = ends[3::4]
    count = len(late)
    ranges = Ranges.build(
        {"start_ns": late - 85 * MS, "end_ns": late - 8 * MS, "kind": [RangeKind.INPUT] * count, "name": [0] * count}
    )
    assert claims(logged(lengths, ranges=ranges, names=("DataLoader.__next__",))) == []


@pytest.mark.parametrize("period", [5, 12, 16])
def test_short_passes_over_a_loader_are_told_where_each_was_seen_to_begin(period: int) -> None:
    lengths = every(period, 90.0, steps=10 * period)
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    late = ends[period - 1 :: period]
    starts = np.concatenate([late - 85 * MS, late - 45 * MS])
    columns = {"kind": [RangeKind.INPUT] * 20, "name": [0] * 10 + [1] * 10}
    ranges = Ranges.build({"start_ns": starts, "end_ns": starts + 38 * MS, **columns})
    (claim,) = claims(logged(lengths, ranges=ranges, names=("DataLoader.__iter__", "DataLoader.__next__")))
    assert "an epoch starts" in claim.summary
    assert claim.fixers is not None
    assert "persistent-workers" in claim.fixers


def test_what_lies_outside_the_traced_steps_is_told_per_step_of_the_whole_run() -> None:
    """Four traced steps of 10 ms after 100 logged ones of which every twentieth takes 410 ms: 20 ms a step of 30."""
    window = drawn("gpu : kkkkkkkkk\nstep:           |", repeat=5)
    lengths = every(20, 410.0, steps=100)
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    trace = replace(window, step_log=StepLog.build({"end_ns": ends - ends[-1] - 500 * MS}))
    found = finding(trace)
    assert found is not None
    assert found.severity is Severity.HIGH
    assert abs(found.recoverable_ns - 20 * MS) < 2 * MS
    assert found.share == pytest.approx(found.recoverable_ns / (10 * MS + found.recoverable_ns))
    (told,) = [one for one in diagnose([trace], plugins.load()).warnings if "outside the recording" in one]
    assert told.endswith(f"shares are of a step of {format_ns(10 * MS + found.recoverable_ns)}")


def test_what_a_short_window_has_too_little_of_is_counted_as_the_log_has_it() -> None:
    """Every twentieth step takes 410 ms; the one among the four traced ones happens to take 42."""
    window = drawn(
        """
        host: oooooooo  oooooooo  oooooooo  oooooooo
        ckpt:                               wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww
        opt :         O         O         O                                         O         O
        """
    )
    assert [length // MS for length in Measures(window).steps.length_ns.tolist()] == [10, 10, 42, 10]
    ends = (np.cumsum(every(20, 410.0, steps=100)) * MS).astype(np.int64)
    found = finding(replace(window, step_log=StepLog.build({"end_ns": ends - ends[-1] - 500 * MS})))
    assert found is not None
    assert abs(found.recoverable_ns - 20 * MS) < 2 * MS


def test_what_a_short_window_has_too_much_of_is_counted_as_the_log_has_it() -> None:
    """Every twentieth step takes 42 ms; one is among the four traced ones, of which the mean is 18 ms and not 11.6."""
    window = drawn(
        """
        host: oooooooo  oooooooo  oooooooo  oooooooo
        opt :         O         O         O                                         O         O
        """
    )
    ends = (np.cumsum(every(20, 42.0, steps=100)) * MS).astype(np.int64)
    trace = replace(window, step_log=StepLog.build({"end_ns": ends - ends[-1] - 500 * MS}))
    assert Measures(trace).steps.length_ns.tolist() == [10 * MS, 10 * MS]
    diagnosis = diagnose([trace], plugins.load())
    assert diagnosis.step_ns == pytest.approx(11.6 * MS, rel=0.02)
    assert any("one in 20 is so long, as the log of the run shows" in one for one in diagnosis.warnings)
    assert len(Measures(replace(trace, step_log=StepLog.build({}))).steps) == 4


def test_all_findings_together_still_fit_into_the_step_of_the_whole_run() -> None:
    window = drawn("host: ol     ol\ngpu :   kkkk   kkkk\nstep:              |", repeat=5)
    ends = (np.cumsum(every(20, 4000.0, steps=100)) * MS).astype(np.int64)
    trace = replace(window, step_log=StepLog.build({"end_ns": ends - ends[-1] - 500 * MS}))
    diagnosis = diagnose([trace], plugins.load())
    assert "periodic-stall" in [one.rule for one in diagnosis.findings]
    assert len(diagnosis.findings) > 1
    lost = next(one.recoverable_ns for one in diagnosis.findings if one.rule == "periodic-stall")
    for one in diagnosis.findings:
        assert one.share == pytest.approx(one.recoverable_ns / ((diagnosis.steps.mean_ns or 0) + lost))
    assert sum(one.share for one in diagnosis.findings) <= 1


def test_steps_under_the_profiler_are_left_out() -> None:
    lengths = every(1000, 10.0, steps=100)
    for step in (20, 40, 60):
        lengths[step] = 60.0
    ends = (np.cumsum(lengths) * MS).astype(np.int64)
    shift = ends[55]
    window = drawn("gpu : kkkkkkkkk\nstep:           |", repeat=4)
    trace = replace(window, window_ns=(0, 40 * MS), step_log=StepLog.build({"end_ns": ends - shift}))
    assert claims(trace) == []


QUIET, STILL = "olsssssss ", "ol                  "
WORKS = "  kkkkkkkk"


def recorded(*steps: str) -> Finding | None:
    """A short recording: each step's host and device, as wide as drawn."""
    device = {QUIET: WORKS, STILL: f"{WORKS:<20}", COPYING: f"{WORKS}dddddddd  "}
    marks = "|" + "".join(" " * (len(host) - 1) + "|" for host in steps)
    host, gpu = "".join(steps), "".join(device[one] for one in steps)
    return finding(drawn(f"host: {host}\ngpu : {gpu}\nstep: {marks}"))


COPYING = "olcccccccccccccccc  "


def test_one_step_that_stands_still_may_be_the_profilers_doing() -> None:
    found = recorded(QUIET, STILL, QUIET, QUIET)
    assert found is not None and found.estimate_share > 0.1 and found.share == 0.0
    assert found.confidence is Confidence.BOUND and found.severity is Severity.NOTE
    assert found.confirm is not None and "a live run (diagnose run) logs every step" in found.confirm


def test_one_that_copies_to_the_host_is_the_programs() -> None:
    found = recorded(QUIET, COPYING, QUIET, QUIET)
    assert found is not None and found.severity is Severity.HIGH


def test_what_recurs_is_the_programs() -> None:
    found = recorded(QUIET, STILL, QUIET, QUIET, QUIET, STILL, QUIET, QUIET)
    assert found is not None and found.severity is Severity.HIGH


def saved(lengths: list[float], every: int, took_ms: float) -> Trace:
    """A run that was seen to write a checkpoint at the end of every so many steps."""
    ends = (np.cumsum(lengths) * MS).astype(np.int64)[every - 1 :: every]
    columns: dict[str, Any] = {"kind": [RangeKind.CHECKPOINT] * len(ends), "name": [0] * len(ends)}
    ranges = Ranges.build({"start_ns": ends - int((took_ms + 1) * MS), "end_ns": ends - MS, **columns})
    return logged(lengths, ranges=ranges, names=("torch.save",))


def uneven(steps: int, more: float = 0.0, period: int = 16) -> list[float]:
    """Steps of 10 to 50 ms by turns, as on a machine that others use; each so many takes some ms more."""
    return [10.0 + 40.0 * ((step * 7) % 11) / 10 + more * (step % period == period - 1) for step in range(steps)]


def test_checkpoints_that_were_seen_are_told_of_where_other_steps_are_as_long_by_chance() -> None:
    lengths = uneven(320, more=25.0)
    assert claims(logged(lengths)) == []
    (claim,) = claims(saved(lengths, 16, 25.0))
    assert "one step in 16 takes" in claim.summary
    assert claim.summary.endswith("a checkpoint is written")
    assert claim.fixers == ("async-checkpoint",)
    assert abs(claim.unseen_ns / MS - 25 / 16) < 0.1


def test_checkpoints_cost_no_more_than_their_steps_are_longer() -> None:
    """A device that is still at work while its checkpoint is written makes no step longer."""
    assert claims(saved(uneven(320), 16, 9.0)) == []


def test_checkpoints_at_no_distance_are_not_told_as_periodic() -> None:
    lengths = uneven(320)
    ends = (np.cumsum(lengths) * MS).astype(np.int64)[[20, 27, 90, 101, 230]]
    columns: dict[str, Any] = {"kind": [RangeKind.CHECKPOINT] * 5, "name": [0] * 5}
    ranges = Ranges.build({"start_ns": ends - 9 * MS, "end_ns": ends - MS, **columns})
    assert claims(logged(lengths, ranges=ranges, names=("torch.save",))) == []


def test_long_steps_of_a_recording_that_differ_are_told_by_the_shortest_and_the_longest() -> None:
    """One figure for steps of 61 and 261 ms would not add up to what they are said to cost."""
    usual = "o" * 9 + " "
    trace = drawn(
        f"""
        host: {usual * 4}oooooooo{" " * 52}{usual * 4}oooooooo{" " * 252}{usual * 4}
        gpu : {"kkkkkkkkk " * 4}kkkkkkkk{" " * 52}{"kkkkkkkkk " * 4}kkkkkkkk{" " * 252}{"kkkkkkkkk " * 4}
        step: {("|" + " " * 9) * 4}|{" " * 59}{("|" + " " * 9) * 4}|{" " * 259}{("|" + " " * 9) * 3}|
        """
    )
    (claim,) = claims(trace)
    assert "2 of the " in claim.summary
    assert "take 61.0 ms to 261 ms instead of 10.0 ms" in claim.summary


def test_what_another_thread_loads_meanwhile_is_not_what_a_long_step_waits_for() -> None:
    trace = drawn(
        """
        host  : oooooooo  oooooooo  oooooooo  oooooooo  oooooooo                      oooooooo
        load 1: wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww
        opt   :         O         O         O         O         O                             O
        """,
        repeat=4,
    )
    (claim,) = claims(trace)
    assert claim.summary == "one step in 6 takes 30.0 ms instead of 10.0 ms, 3.48 ms per step on average"
