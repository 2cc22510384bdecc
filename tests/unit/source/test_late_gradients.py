"""Optimizers whose parameters get their first gradients in different steps, as a run and the text show it."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from diagnose.model import Site
from diagnose.source.optimizers.late_gradients import late_gradients

PHASES = """
import torch
from torch import nn

def build():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    return model

def train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
def main():
    model = build()
    {before}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, loader)
    {between}
    train(model, optimizer, loader)

main()
"""
PROGRAM = """
import torch
from torch import nn

def free(net):
    for p in net.parameters():
        p.requires_grad = True

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
{start}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(9):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
{step}
        model(x).mean().backward()
        optimizer.step()
"""
LINE = 11


def late(*noted: str, start: str = "", step: str = "", line: int = LINE) -> str | None:
    text = PROGRAM.format(start=start, step=indent(dedent(step), " " * 8))
    sites = [Site(kind, "train.py", line) for kind in ("optimizer", *noted)]
    return late_gradients({"train.py": text}, sites, Site("optimizer", "train.py", LINE))


def test_steps_in_which_all_had_a_gradient() -> None:
    assert late("stepped") is None


def test_a_step_in_which_one_had_none() -> None:
    assert late("stepped", "idle parameters") == (
        f"train.py:{LINE}: some of its parameters had no gradient in one of the first steps"
    )


def test_what_no_run_shows() -> None:
    assert "no run shows" in str(late())
    assert "no run shows" in str(late("stepped", line=LINE + 1)), "another optimizer's"


FREED = [
    "if epoch == 3:\n    for p in model.parameters():\n        p.requires_grad = True",
    "if epoch == 3:\n    model[0].weight.requires_grad_(True)",
    "if epoch == 3:\n    for p in model.parameters():\n        setattr(p, 'requires_grad', True)",
    "if epoch == 3:\n    free(model)",
]


@pytest.mark.parametrize("step", FREED)
def test_parameters_that_were_frozen_and_are_freed_later(step: str) -> None:
    assert "may free parameters" in str(late("stepped", "frozen parameters", step=step))
    assert late("stepped", step=step) is None, "none was frozen"


@pytest.mark.parametrize(
    ("start", "step"),
    [
        ("for p in model[0].parameters():\n    p.requires_grad = False", ""),
        ("for p in model[0].parameters():\n    p.requires_grad = p.dim() > 1", ""),
        ("free(model)", ""),
        ("", "x.requires_grad_(True)"),
        ("", "x = x * 2\nx.requires_grad_(True)"),
        ("", "y[0].requires_grad_(True)"),
        ("", "if epoch == 3:\n    model[0].weight.requires_grad_(False)"),
    ],
)
def test_parameters_that_stay_frozen(start: str, step: str) -> None:
    assert late("stepped", "frozen parameters", start=start, step=step) is None


@pytest.mark.parametrize(
    "free",
    [
        "part = model[0]\n    part.requires_grad_(True)",
        "model[0].requires_grad_()",
        "model.requires_grad_(True)",
        "for p in model[0].parameters(): p.requires_grad = True",
        "free(model[0])",
    ],
)
def test_parameters_that_are_freed_between_two_phases(free: str) -> None:
    text = PHASES.replace("def main", "\ndef free(part):\n    part.requires_grad_()\n\ndef main")
    line = text[: text.index("torch.optim")].count("\n") + 1
    sites = [Site(kind, "train.py", line) for kind in ("optimizer", "stepped", "frozen parameters")]
    for before, between, late in (("pass", free, True), (free, "pass", False)):
        sources = {"train.py": text.format(before=before, between=between)}
        assert (late_gradients(sources, sites, sites[0]) is not None) is late
