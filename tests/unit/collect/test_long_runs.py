"""What a run of days leaves on the disk and in memory stays bounded, and no step is counted wrongly."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collect.inside.modes import watch
from diagnose.collect.progress import StepsEnded, Tail
from diagnose.observe import _events
from diagnose.report.sections.side_by_side import paces
from diagnose.report.terminal.progress import Progress
from diagnose.session import State
from diagnose.session.state import STEPS_KEPT
from diagnose.trace.readers.telemetry.rank_records import RankRecords
from diagnose.units import NS_PER_MS, NS_PER_S

LOGGED = 1_000


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> watch.Watch:
    """The watcher of a process that keeps few lines."""
    monkeypatch.setattr(watch, "MOST_STEPS", LOGGED)
    steps = SimpleNamespace(end_ns=0, step_backwards=1, step_input_ns=2)
    hub: Any = SimpleNamespace(steps=steps, claimed=True, input_ns=lambda: 0)
    return watch.Watch({}, hub)


def take(watched: watch.Watch, first: int, last: int) -> None:
    """Steps `first` to `last`, a millisecond each."""
    watched._step_lines += [(number * NS_PER_MS, 1, 2) for number in range(first, last + 1)]


def written(watched: watch.Watch) -> str:
    ((_, lines),) = watched._drain_steps()
    return lines


def test_after_its_most_lines_a_log_has_one_for_each_writing(watched: watch.Watch, tmp_path: Path) -> None:
    rank = tmp_path / "rank0"
    rank.mkdir()
    (rank / "claim").write_text(json.dumps({"pid": 1, "device": None}))
    log = rank / "steps.jsonl"
    tail, state, said = Tail(tmp_path, 4), State(), Progress(every_ns=0)
    lines = []
    for first in range(1, 10 * LOGGED, 400):
        take(watched, first, first + 399)
        with log.open("a") as file:
            file.write(written(watched))
        for record in tail.new():
            for event in _events(record):
                state = state.after(event)
                lines.append(said(event) if isinstance(record, StepsEnded) else None)
    assert len(log.read_text().splitlines()) == LOGGED + 23
    assert state.steps[0].count == 10 * LOGGED
    assert set(state.steps[0].lengths_ns) == {NS_PER_MS}
    assert [line for line in lines if line][-1] == "step 10,000: 1.00 ms per step"
    assert len(RankRecords.read(rank).steps) == LOGGED


def test_waits_for_the_loader_end_with_the_lines_of_the_steps(watched: watch.Watch) -> None:
    wait = watched._ranges._loader_waited
    wait(1, 2, "DataLoader.__next__")
    take(watched, 1, LOGGED + 1)
    written(watched)
    wait(3, 4, "DataLoader.__next__")
    watched._ranges._collected("start", {})
    ((_, lines),) = watched._ranges.drain()
    assert lines.count("\n") == 1


def test_a_million_steps_take_no_more_memory_than_those_that_are_drawn() -> None:
    state, said = State(), Progress()
    tracemalloc.start()
    try:
        for first in range(0, 1_000_000, 1000):
            ends = tuple(range(first * 1000, (first + 1000) * 1000, 1000))
            for event in _events(StepsEnded(0, ends, (0,) * 1000)):
                state = state.after(event)
                said(event)
        held_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert state.steps[0].count == 1_000_000
    assert STEPS_KEPT <= len(state.steps[0].ends_ns) <= 2 * STEPS_KEPT
    assert held_bytes < 200 * STEPS_KEPT


def test_ranks_are_compared_over_the_same_steps_however_many_are_gone() -> None:
    state = State()
    for rank, late_ns, steps in ((0, 0, 3 * STEPS_KEPT), (1, 5, 2 * STEPS_KEPT)):
        for first in range(0, steps, 500):
            ends = tuple(number * NS_PER_S + late_ns for number in range(first, first + 500))
            for event in _events(StepsEnded(rank, ends, (0,) * 500)):
                state = state.after(event)
    assert [one.behind_ns for one in paces(state.steps)] == [0, 5]


def test_a_sampler_ends_after_its_most_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from diagnose.collect.inside.probes import stack_sampler

    monkeypatch.setattr(stack_sampler, "MOST_SAMPLES", 10)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    sampler = stack_sampler.Sampler(thread=0)

    def sample() -> None:
        sampler._samples.append((1, 1))
        list(sampler.drain())

    monkeypatch.setattr(sampler, "sample", sample)
    sampler._run()
    assert sampler._given == 10
