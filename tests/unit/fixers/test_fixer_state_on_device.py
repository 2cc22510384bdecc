"""state-on-device on moving averages that live on the host: they end at the same numbers, and only they are moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Facts, Request, Site, example_request
from diagnose.plugins import load

FIXER = load().fixers["state-on-device"]

HEAD = """import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
device = torch.device("cpu")
"""
CLASS = HEAD.replace(
    "torch.manual_seed(0)\n",
    """torch.manual_seed(0)

class Average:
    def __init__(self, model):
        self.weights = list(model.parameters())
        self.shadow = [w.detach().cpu().clone() for w in self.weights]

    @torch.no_grad()
    def update(self, device):
        for shadow, weight in zip(self.shadow, self.weights):
            moved = shadow.to(device)
            moved.lerp_(weight, 0.1)
            shadow.copy_(moved)

    def put_back(self):
        for weight, shadow in zip(self.weights, self.shadow):
            weight.data.copy_(shadow)

""",
)
PROGRAMS = {
    "class": CLASS
    + """average = Average(model)
for step in range(4):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    average.update(device)
average.put_back()
result = [weight.detach() for weight in model.parameters()]
""",
    "function": HEAD
    + """
def train(steps):
    ema = [torch.zeros_like(p, device="cpu") for p in model.parameters()]
    for step in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(ema, model.parameters()):
                e.mul_(0.9).add_(p.detach().cpu(), alpha=0.1)
    for e, p in zip(ema, model.parameters()):
        p.data.copy_(e)

train(4)
result = [weight.detach() for weight in model.parameters()]
""",
    "lists": HEAD
    + """
kept = [p.detach().to("cpu").clone() for p in model.parameters()]
for step in range(4):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    now = [k.to(device, non_blocking=True) for k in kept]
    torch._foreach_lerp_(now, [p.detach() for p in model.parameters()], 0.1)
    for k, n in zip(kept, now):
        k.copy_(n)
for p, k in zip(model.parameters(), kept):
    p.data.copy_(k)
result = [weight.detach() for weight in model.parameters()]
""",
}


def request(text: str) -> Request:
    return example_request("exposed-copies", text)


def results(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    found = names["result"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_averages_come_out(name: str) -> None:
    text = PROGRAMS[name]
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert "cpu()" not in patched
    assert patched.count('"cpu"') == 1, "that of the device itself"
    assert all(torch.equal(one, other) for one, other in zip(results(text), results(patched), strict=True))


def test_without_room_on_the_device_it_is_left_with_advice() -> None:
    site = Site("optimizer", "train.py", 4, arguments={"elements": 5 * 10**9})
    facts = Facts(device_memory_bytes=80 * 10**9, peak_memory_bytes=70 * 10**9)
    answer = FIXER.rewrite(replace(request(PROGRAMS["class"]), sites=(site,), facts=facts))
    assert isinstance(answer, Advice)
    assert "no room" in answer.text


def test_a_list_that_another_reads_is_left_alone() -> None:
    text = PROGRAMS["class"] + "torch.save(average.shadow, 'shadow.pt')\n"
    assert FIXER.rewrite(request(text)) is None
