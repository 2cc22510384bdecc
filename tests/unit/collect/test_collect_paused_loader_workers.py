"""A loader's workers stand still while a profiler begins and ends, so that its window shows what they deliver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader

from diagnose.collect.inside.hooks.paused_loader_workers import PausedLoaderWorkers
from diagnose.collect.inside.hooks.step_hooks import StepHooks, hook_loader
from diagnose.collect.inside.window.profiler_window import Window
from diagnose.collect.inside.window.tracing import Tracing


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> StepHooks:
    from torch.utils.data import dataloader

    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    found = StepHooks(lambda _: None)
    hook_loader(torch, found)
    return found


@pytest.fixture
def batches(steps: StepHooks) -> Iterator[Any]:
    assert steps.loader is None
    samples: Any = range(100)
    one: Any = iter(DataLoader(samples, num_workers=2, multiprocessing_context="fork"))
    next(one)
    yield one


def stand_still(batches: Any) -> bool:
    states = {Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] for worker in batches._workers}
    return states == {"T"}


def wait_until(batches: Any, *, still: bool) -> None:
    while stand_still(batches) is not still:  # a signal takes its moment
        os.sched_yield()


def test_workers_stand_still_and_go_on(steps: StepHooks, batches: Any) -> None:
    with PausedLoaderWorkers(steps).still():
        wait_until(batches, still=True)
    assert len(list(batches)) == 99


def test_they_go_on_where_the_profiler_does_not_begin(steps: StepHooks, batches: Any) -> None:
    with pytest.raises(RuntimeError, match="another profiler"), PausedLoaderWorkers(steps).still():
        raise RuntimeError("another profiler is recording")
    wait_until(batches, still=False)


def test_a_worker_that_is_gone_is_nobody_to_stop(steps: StepHooks, batches: Any) -> None:
    batches._workers[0].kill()
    batches._workers[0].join()
    with PausedLoaderWorkers(steps).still():
        pass


def test_a_worker_that_is_closed_is_nobody_to_stop(steps: StepHooks, batches: Any) -> None:
    first, second = batches._workers
    batches._shutdown_workers()
    second.join()
    second.close()
    with PausedLoaderWorkers(steps).still():
        assert not first.is_alive()


def test_without_workers_there_is_nobody_to_stop(steps: StepHooks) -> None:
    with PausedLoaderWorkers(steps).still():
        pass
    samples: Any = range(3)
    for _ in DataLoader(samples):
        with PausedLoaderWorkers(steps).still():
            pass


def test_they_go_on_where_a_signal_ends_the_process(steps: StepHooks, batches: Any) -> None:
    """Its handler runs in the midst of what goes on, and nothing after it."""
    held = PausedLoaderWorkers(steps)
    with held.still():
        wait_until(batches, still=True)
        held.release()
        wait_until(batches, still=False)


def test_they_stand_still_while_the_window_of_a_run_begins_and_ends(
    steps: StepHooks, batches: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    def noted(moment: str) -> Callable[..., None]:
        def note(*_arguments: object) -> None:
            wait_until(batches, still=True)
            seen.append(moment)

        return note

    for moment in ("open", "stop"):
        monkeypatch.setattr(Window, moment, noted(moment))
    (tmp_path / "rank0").mkdir()
    hub = SimpleNamespace(
        torch=torch,
        steps=steps,
        input_ns=lambda: 0,
        end_ns=lambda: 0,
        rank=0,
        world_size=1,
        folder=tmp_path / "rank0",
        uses_cuda=False,
    )
    sites, allocations = SimpleNamespace(ownership=None), SimpleNamespace(end_history=lambda: None)
    tracing = Tracing({}, cast("Any", hub), cast("Any", sites), cast("Any", allocations), list)
    tracing._open(5)
    wait_until(batches, still=False)
    tracing._finish()
    wait_until(batches, still=False)
    assert seen == ["open", "stop"]
    with tracing._window._workers.still():
        tracing.close()
        wait_until(batches, still=False)
