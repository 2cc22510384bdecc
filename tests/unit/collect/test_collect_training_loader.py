"""Which of a program's loaders training takes its batches from."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, dataloader

from diagnose.collect.inside.hooks.sites import TRAINED_FROM, Sites
from diagnose.collect.inside.hooks.step_hooks import StepHooks, hook_loader
from diagnose.measure.steps.loader_capacity import training_loaders
from diagnose.model import Site
from diagnose.trace.drawn import drawn

TRAIN, VALID = Site("DataLoader", "train.py", 10, "main", {}), Site("DataLoader", "train.py", 11, "main", {})


def test_the_loader_that_a_step_took_its_batch_from_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    steps, sites = StepHooks(lambda _: None), Sites()
    hook_loader(torch, steps)
    sites._after_init(DataLoader, "DataLoader", lambda *_: {})
    samples: Any = range(8)
    assert steps.training_loader() is None
    train = DataLoader(samples)
    valid = DataLoader(samples)
    batches = iter(train)
    next(batches)
    sites.trained_from(steps.training_loader())
    assert steps.training_loader() is train
    assert valid is not train
    noted = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    built = [site["line"] for site in noted if site["kind"] == "DataLoader"]
    assert len(built) == 2
    assert [site["line"] for site in noted if site["kind"] == TRAINED_FROM] == built[:1]


@pytest.mark.parametrize(
    ("more", "found"),
    [((Site(TRAINED_FROM, "train.py", 10, "main", {}),), [TRAIN]), ((), [TRAIN, VALID])],
)
def test_other_loaders_say_nothing_of_training(more: tuple[Site, ...], found: list[Site]) -> None:
    assert training_loaders(drawn("host: oo", sites=(TRAIN, VALID, *more))) == found
