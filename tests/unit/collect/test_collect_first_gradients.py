"""What is noted of the gradients that the parameters of an optimizer have in its first steps."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from diagnose.collect.inside.hooks.sites import FROZEN, IDLE, STEPPED, Sites


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    found = Sites()
    found._after_init(torch.optim.Optimizer, "optimizer", lambda *_: {})
    yield found


def noted(sites: Sites) -> set[str]:
    lines = [json.loads(line) for _, text in sites.drain() for line in text.splitlines()]
    assert len({(one["file"], one["line"]) for one in lines}) <= 1
    return {one["kind"] for one in lines} - {"optimizer"}


def with_gradients(*layers: nn.Module) -> None:
    for layer in layers:
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)


def test_all_parameters_have_a_gradient(sites: Sites) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    assert noted(sites) == set(), "it has not stepped"
    with_gradients(model)
    sites.stepped(optimizer)
    assert noted(sites) == {STEPPED}


def test_one_has_none_in_the_first_step_or_the_next(sites: Sites) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with_gradients(model)
    sites.stepped(optimizer)
    model[1].zero_grad()
    sites.stepped(optimizer)
    assert noted(sites) == {STEPPED, IDLE}


def test_frozen_ones_need_none(sites: Sites) -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with_gradients(model[1])
    sites.stepped(optimizer)
    assert noted(sites) == {STEPPED, FROZEN}


def test_one_of_two_that_are_built_on_a_line_has_not_stepped(sites: Sites) -> None:
    model, later = nn.Linear(2, 2), nn.Linear(2, 2)
    first, second = [torch.optim.SGD(each.parameters(), momentum=0.9) for each in (model, later)]
    with_gradients(model, later)
    sites.stepped(first)
    assert noted(sites) == set()
    sites.stepped(second)
    assert noted(sites) == {STEPPED}


def test_one_that_is_gone_need_not_step(sites: Sites) -> None:
    model = nn.Linear(2, 2)
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with_gradients(model)
    sites.stepped(optimizer)
    assert noted(sites) == {STEPPED}


def test_later_steps_are_not_looked_at(sites: Sites) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with_gradients(model)
    for _ in range(10):
        sites.stepped(optimizer)
    model.zero_grad()
    sites.stepped(optimizer)
    assert noted(sites) == {STEPPED}


def test_an_optimizer_whose_building_was_not_seen_says_nothing(sites: Sites) -> None:
    class Own:
        param_groups = None

    sites.stepped(Own())
    assert noted(sites) == set()
