"""offload on programs that run: what their first steps record leads to contexts around the chosen blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import diagnose.kernels
from diagnose.collect.inside.hooks.sites import Sites
from diagnose.collect.inside.probes.blocks.block_probe import TIMES, Blocks
from diagnose.fixer import Advice, Edits, Request, Scalar, example_request
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["offload"]

LOOP = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)  # one after the other
        return x
"""
STACK = LOOP.replace("ModuleList(Block() for _ in range(4))", "Sequential(*[Block() for _ in range(4)])").replace(
    "        for block in self.blocks:\n            x = block(x)  # one after the other\n        return x",
    "        return torch.relu(self.blocks(x * 2))",
)
COUNTED = LOOP.replace("for block in self.blocks:", "for i, layer in enumerate(self.blocks):").replace(
    "x = block(x)", "y = layer(x)\n            x = y"
)
PROGRAMS = {"a loop": LOOP, "a stack": STACK, "a loop that counts": COUNTED}


def made(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "/home/user/train.py", "exec"), space)
    torch.manual_seed(0)
    return space["Net"]()


def request(text: str, blocks: str | None = "0-1") -> Request:
    """What the first steps of the program lead to."""
    sites = Sites()
    sites.ownership.roots.append("/home/user")
    probe = Blocks(sites)
    model = made(text)
    probe.install(torch)
    for index in range(TIMES + 1):
        model(torch.ones(3, 8)).sum().backward()
        probe.step_ended(index)
    probe.finish()
    lines = [json.loads(line) for _, told in sites.drain() for line in told.splitlines()]
    setting: dict[str, Scalar] = {} if blocks is None else {"blocks": blocks}
    seen = [Site(**{**line, "file": "train.py"}) for line in lines]
    return example_request("memory-pressure", text, sites=seen, setting=setting)


def numbers_of(text: str) -> list[torch.Tensor]:
    model = made(text)
    torch.manual_seed(1)
    loss = model(torch.linspace(-1, 1, 24).reshape(3, 8)).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("blocks", ["0-1", "0,3", "0-3"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_the_chosen_blocks_run_in_the_context_and_no_bit_changes(
    program: str, blocks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = FIXER.rewrite(request(program, blocks))
    assert isinstance(answer, Edits), answer
    fixed = answer.files["train.py"]
    assert all(map(torch.equal, numbers_of(program), numbers_of(fixed)))
    entered: list[bool] = []

    @contextmanager
    def noted(enabled: bool = True) -> Iterator[None]:
        entered.append(enabled)
        yield

    monkeypatch.setattr(diagnose.kernels, "offload", noted)
    numbers_of(fixed)
    chosen = {"0-1": {0, 1}, "0,3": {0, 3}, "0-3": {0, 1, 2, 3}}[blocks]
    assert {number for number, on in enumerate(entered) if on} == chosen
    assert len(entered) == 4


def test_comments_stay_with_their_lines() -> None:
    answer = FIXER.rewrite(request(LOOP))
    assert isinstance(answer, Edits)
    new = "            with offload(number < 2):\n                x = block(x)  # one after the other\n"
    assert new in answer.files["train.py"]


@pytest.mark.parametrize("line", ["net = torch.compile(Net())", "graph = torch.cuda.CUDAGraph()", "save_on_cpu(True)"])
def test_programs_that_handle_saved_tensors_otherwise_are_left_alone(line: str) -> None:
    asked = request(LOOP)
    text = f"{LOOP}\n\ndef other():\n    {line}\n"
    assert FIXER.rewrite(example_request("memory-pressure", text, sites=asked.sites, setting=asked.setting)) is None


def test_blocks_of_a_library_are_left_with_advice() -> None:
    asked = request(LOOP)
    (site,) = asked.sites
    elsewhere = Site(site.kind, "/usr/lib/models.py", site.line, site.function, site.arguments, owned=False)
    answer = FIXER.rewrite(example_request("memory-pressure", LOOP, sites=(elsewhere,), setting=asked.setting))
    assert isinstance(answer, Advice)
