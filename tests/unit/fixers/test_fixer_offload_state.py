"""offload-state on programs that run: the same weights, and shares from what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import diagnose.kernels
from diagnose.fixer import Advice, Edits, Request, Scalar, example_request
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["offload-state"]
GB = 1_000_000_000

FLAT = """import torch
from torch import nn, optim

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
optimizer = optim.AdamW(model.parameters(), lr=0.1)  # as ever
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
result = model
"""
TRAINER = """import torch


class Trainer:
    def __init__(self, net, lr=0.1):
        self.net = net
        if lr > 1:
            raise ValueError(lr)
        self.opt: torch.optim.Optimizer = None
        self.opt = torch.optim.SGD(
            net.parameters(),
            lr=lr,
            momentum=0.9,
        )

    def fit(self):
        for _ in range(3):
            loss = self.net(torch.ones(2, 8)).square().sum()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return self.net


torch.manual_seed(0)
result = Trainer(torch.nn.Linear(8, 8)).fit()
"""
FUNCTION = """import torch as t
from torch.optim import Adam as Optimizer, lr_scheduler


def train():
    t.manual_seed(0)
    net = t.nn.Linear(8, 8)
    optimizer = Optimizer([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.01}], lr=0.1, fused=True)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        net(t.ones(2, 8)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return net


result = train()
"""
PROGRAMS = {"a flat script": FLAT, "a class": TRAINER, "a function": FUNCTION}


def rewritten(text: str, share: float = 0.5) -> Any:
    return FIXER.rewrite(example_request("memory-pressure", text, setting={"share": share}))


def weights(text: str) -> list[torch.Tensor]:
    space: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), space)
    return [one.detach() for one in space["result"].parameters()]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_optimizer_is_given_over_and_no_bit_changes(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = rewritten(program)
    assert isinstance(answer, Edits)
    fixed = answer.files["train.py"]
    assert all(map(torch.equal, weights(program), weights(fixed)))
    given: list[tuple[object, float]] = []
    monkeypatch.setattr(diagnose.kernels, "offload_state", lambda *told: given.append(told))
    weights(fixed)
    ((optimizer, share),) = given
    assert isinstance(optimizer, torch.optim.Optimizer) and share == 0.5


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_offloaded_already_is_left_alone(program: str) -> None:
    assert rewritten(rewritten(program).files["train.py"]) is None


def test_an_optimizer_of_the_programs_own_is_left_to_it() -> None:
    site = Site("optimizer", "train.py", 7, "f", {"name": "Lion"})
    request = example_request("memory-pressure", FLAT, sites=[site], setting={"share": 1.0})
    answer = FIXER.rewrite(request)
    assert isinstance(answer, Advice) and "offload_state" in answer.text


def test_an_optimizer_that_a_library_builds_is_advised_on() -> None:
    site = Site("optimizer", "/lib/transformers/trainer.py", 7, "f", {"name": "AdamW"}, owned=False)
    answer = FIXER.rewrite(example_request("memory-pressure", FLAT, sites=[site], setting={"share": 1.0}))
    assert isinstance(answer, Advice) and "a library" in answer.text


def measured(turn: int, rest: int, elements: int = GB, **known: Scalar) -> Request:
    """Two blocks; the peaks after the forward pass and as the optimizer steps, of 100 GB."""
    told: dict[str, Scalar] = {"order": "0,1", "kept_bytes": "1,1", "boundary_bytes": "1,1", "cast_bytes": "0,0"}
    told |= {"forward_ns": "1,1", "forward_peak_bytes": "1,1", "backward_peak_bytes": "1,1"}
    told |= {"turn_peak_bytes": turn, "rest_peak_bytes": rest, "limit_bytes": 100 * GB, **known}
    blocks = Site("blocks", "train.py", 5, "f", told)
    optimizer = Site("optimizer", "train.py", 6, "f", {"name": "AdamW", "elements": elements})
    return example_request("memory-pressure", FLAT, sites=[blocks, optimizer])


def shares(request: Request) -> list[Scalar]:
    return [setting["share"] for setting in FIXER.settings(request)]


def test_the_share_is_the_least_with_which_the_peak_fits() -> None:
    # 8 GB of state; 94 are held, and 92 or 80 or 65 may be.
    assert shares(measured(94 * GB, 60 * GB)) == [0.25]
    assert shares(measured(94 * GB, 60 * GB, elements=4 * GB)) == [0.125, 0.5, 1.0]
    assert shares(measured(94 * GB, 60 * GB, fragment_bytes=10 * GB)) == [0.5]


def test_no_share_helps_where_the_step_itself_is_the_peak() -> None:
    assert shares(measured(94 * GB, 94 * GB)) == []


def test_where_no_peak_is_known_shares_are_tried() -> None:
    assert shares(example_request("memory-pressure", FLAT)) == [0.25, 0.5, 1.0]
    assert shares(measured(94 * GB, 60 * GB, turn_peak_bytes=None)) == [0.25, 0.5, 1.0]
