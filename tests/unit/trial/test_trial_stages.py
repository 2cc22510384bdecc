"""The stages of a trial follow each other as `FOLLOWS` says, and every one of them ends for a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from fake_arms import SCHEDULE, Machine

from diagnose.trial.ab import ab_trial
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison, Ending
from diagnose.trial.ab.trial_state import FOLLOWS, Stage, TrialState
from diagnose.trial.process.arm import ArmFailed, Trouble
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline


def out_of_memory() -> ArmFailed:
    return ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory")


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Stage, Stage]]:
    """The steps from stage to stage that trials take."""
    steps: list[tuple[Stage, Stage]] = []
    after = ab_trial._after

    def noted(stage: Stage, state: TrialState) -> Stage:
        steps.append((stage, after(stage, state)))
        return steps[-1][1]

    monkeypatch.setattr(ab_trial, "_after", noted)
    return steps


def spent() -> Deadline:
    return Deadline(at_ns=0, clock=lambda: 1)


FULL = Memory(reserved_bytes=60, free_bytes=40, device_bytes=100, peak_bytes=50)
TRIALS: dict[str, tuple[Callable[[], Comparison], Ending]] = {
    "to its last pair": (lambda: Machine().run(), Ending.MEASURED),
    "of a large saving": (lambda: Machine().run(resolution=0.05), Ending.SURE),
    "that shows a saving again": (lambda: Machine().run(resolution=0.05, reassures=True), Ending.REASSURED),
    "of a fix that slows down": (
        lambda: Machine(step_ns=lambda side: 10e6 if side == ORIGINAL else 20e6).run(resolution=0.05),
        Ending.HOPELESS,
    ),
    "that the user leaves": (lambda: Machine().run(skipped=lambda: True), Ending.SKIPPED),
    "without time": (lambda: Machine().run(deadline=spent()), Ending.OUT_OF_TIME),
    "of a side that crashes": (
        lambda: Machine(fails={PATCHED: ArmFailed(Trouble.CRASHED, "boom")}).run(),
        Ending.FAILED,
    ),
    "of a program that ends early": (lambda: Machine(lasts=90).run(), Ending.MEASURED),
    "of a program too short for a pair": (lambda: Machine(lasts=8).run(), Ending.MEASURED),
    "in alternation": (lambda: Machine().run(fits=False), Ending.MEASURED),
    "of a first arm that leaves no room": (lambda: Machine(memory=FULL).run(fits=None), Ending.MEASURED),
    "that memory makes alternate": (lambda: Machine(fails={PATCHED: out_of_memory()}).run(), Ending.MEASURED),
    "of a process that hangs once": (lambda: Machine(hangs=[2]).run(), Ending.MEASURED),
}


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_goes_from_stage_to_stage_as_is_written_and_ends_for_a_reason(
    name: str, walked: list[tuple[Stage, Stage]]
) -> None:
    trial, ending = TRIALS[name]
    found = trial()
    assert found.ending is ending
    assert (found.failed is not None) is (ending is Ending.FAILED)
    assert walked[0][0] in {Stage.STARTING, Stage.ALTERNATING}
    assert walked[-1] == (Stage.CLOSING, Stage.ENDED)
    assert all(before[1] is after[0] for before, after in itertools.pairwise(walked))
    assert all(after in FOLLOWS[before] for before, after in walked)


def test_every_step_that_is_written_is_taken_by_some_trial(walked: list[tuple[Stage, Stage]]) -> None:
    """What no trial does would be no part of the machine."""
    for trial, _ in TRIALS.values():
        trial()
    Machine(lasts=6).run()  # ends in the blocks that settle the arms
    assert set(walked) == {(stage, after) for stage, follows in FOLLOWS.items() for after in follows}


def test_an_ending_that_was_found_stands_but_for_a_failure_after_it() -> None:
    found, endings = Comparison(), []
    found.end(Ending.SURE)
    endings.append(found.ending)
    found.end(Ending.OUT_OF_TIME)
    endings.append(found.ending)
    found.fail(PATCHED, out_of_memory())
    assert [*endings, found.ending] == [Ending.SURE, Ending.SURE, Ending.FAILED]


def test_a_step_that_is_not_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ab_trial._WORK, Stage.STARTING, lambda _state: Stage.WINDOWS)
    with pytest.raises(AssertionError, match="WINDOWS"):
        Machine().run(schedule=SCHEDULE)
