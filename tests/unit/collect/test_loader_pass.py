"""Whether a window fits into the pass over the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, dataloader

from diagnose.collect.inside.hooks.loader_pass import LoaderPass
from diagnose.collect.inside.hooks.step_hooks import StepHooks, hook_loader

STEPS = 6


class Training:
    """Takes batches as a training loop does."""

    def __init__(self, samples: Any, batches_per_step: int = 1) -> None:
        self.steps = StepHooks(lambda _: None)
        hook_loader(torch, self.steps)
        self.place = LoaderPass(self.steps)
        self.loader = DataLoader(samples)
        self.batches_per_step = batches_per_step
        self.batches = iter(self.loader)

    def after(self, steps: int) -> bool:
        """Whether there is room after so many more steps, of this pass and those that follow it."""
        for _ in range(steps):
            for _ in range(self.batches_per_step):
                if next(self.batches, None) is None:
                    self.batches = iter(self.loader)
                    next(self.batches)
            self.place.step_ended()
        return self.place.has_room(STEPS)


@pytest.fixture(autouse=True)
def unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)


def test_a_window_that_would_hold_the_end_of_a_pass_waits_for_the_next_one() -> None:
    training = Training(range(16))
    assert training.after(16 + 10)  # six are left
    assert not training.after(1)
    assert not training.after(5)  # this was the last one
    assert training.after(1)


def test_the_first_pass_may_be_the_only_one() -> None:
    assert Training(range(16)).after(15)


def test_a_step_may_take_several_batches() -> None:
    training = Training(range(64), batches_per_step=4)
    assert training.after(16 + 10)
    assert not training.after(1)


def test_where_no_pass_is_long_enough_none_is_waited_for() -> None:
    assert Training(range(STEPS)).after(STEPS + 3)


def test_a_dataset_that_does_not_say_how_long_it_is_is_not_waited_for() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    assert Training(Endless()).after(8 + 5)


def test_a_program_without_a_loader_is_not_waited_for() -> None:
    assert LoaderPass(StepHooks(lambda _: None)).has_room(STEPS)
