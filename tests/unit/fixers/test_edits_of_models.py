"""What edits of a model's mathematics must leave alone, and what they may take."""

from __future__ import annotations

import pytest
from rewriting import fixed, rewritten

CONVOLUTION = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        x = self.block(x)
        return self.head(x.view(x.size(0), -1))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in batches:
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""


def test_channels_last_flattens_what_another_class_convolved() -> None:
    assert "x.reshape(x.size(0), -1)" in fixed("channels-last", CONVOLUTION)


@pytest.mark.parametrize(
    "use",
    [
        "print(model.block.conv.weight.stride())",
        "send(model.block.conv.weight.data_ptr())",
        "vector = nn.utils.parameters_to_vector(model.parameters())",
        'nn.utils.prune.l1_unstructured(model[0], "weight", amount=0.3)',
        "model.block.conv.weight.data.view(-1).fill_(1)",
        "x.view(2, -1)[:, 0] = 0",
        "mask.flatten()[torch.topk(mask.flatten(), 3).indices] = 0",
        "model.block.conv.weight.grad.reshape(-1).clamp_(-1, 1)",
        "flat = model.block.conv.weight.data.ravel()\nflat[0] = 0",
        "flat = mask.flatten()\nflat[3] = 0\nmodel.register_buffer('mask', mask)",
        "state.flat = mask.flatten()\nstate.flat.clamp_(0, 1)",
        "flat: torch.Tensor = mask.flatten()\nflat[3] = 0",
        "for row in model.block.conv.weight.data.flatten(1):\n    row.div_(row.norm())",
        "unit_(model.block.conv.weight.data.flatten(1))",
        "w = model.block.conv.weight.data\nw = w.flatten(1)\nw /= w.norm()",
        "x = model(x)\nx = mask.reshape(x.shape)\nx += 1",
        "def bound(w):\n    w = w.reshape(len(w), -1)\n    w.renorm_(2, 0, 1.0)",
        "torch.ops.mine.convolve(x)",
    ],
)
def test_channels_last_leaves_programs_that_ask_how_tensors_lie(use: str) -> None:
    assert rewritten("channels-last", CONVOLUTION + use + "\n") is None


@pytest.mark.parametrize(
    "use",
    [
        "x = model(x)\nx = x.flatten(1)\nx += 1",
        "x = model(x).squeeze(-1)\nx = torch.flatten(x, 1)\nx.relu_()",
        "nn.init.orthogonal_(model.block.conv.weight.flatten(1))",
        "for row in x.flatten(1):\n    print(row.norm())",
        "norm = model.block.conv.weight.grad.flatten().norm()",
    ],
)
def test_channels_last_is_for_programs_that_flatten_and_read(use: str) -> None:
    assert rewritten("channels-last", CONVOLUTION + use + "\n") is not None


NORM = """
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        {first}
        y = {value}
        return y * self.weight
"""
ROOT = "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"


@pytest.mark.parametrize("given", ["x.float()", "x.to(torch.float32)"])
def test_a_norm_that_returns_the_wider_format_still_does(given: str) -> None:
    assert "rms_norm(x.float(), " in fixed("native-norm", NORM.format(first=f"x = {given}", value=ROOT))


@pytest.mark.parametrize(
    ("first", "value"),
    [
        ("x = x.to(torch.bfloat16)", ROOT),
        ("x = x.double()", ROOT),
        ("x = x.float()", f"({ROOT}).to(x.dtype)"),
        ("x = x.float(); print(x.dtype)", ROOT),
    ],
)
def test_a_norm_that_returns_another_format_is_left_alone(first: str, value: str) -> None:
    assert rewritten("native-norm", NORM.format(first=first, value=value)) is None


BLOCKS = """
import random

import torch
from torch import nn

SEEN = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        {effect}
        return x + self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        self.calls = 1
        for block in self.blocks:
            x = block(x)
        return x
"""


def test_blocks_without_effects_are_computed_again_whatever_the_caller_keeps() -> None:
    text = BLOCKS.format(effect="rows = []\n        rows.append(x)")
    assert "checkpoint(block, x" in fixed("checkpoint-blocks", text, rule="memory-pressure")


@pytest.mark.parametrize(
    "effect",
    [
        "self.calls += 1",
        "self.last = x",
        "self.count.add_(1)",
        "SEEN.append(x.shape)",
        "print(x.shape)",
        "x = x if random.random() < 0.5 else -x",
        "global SEEN",
    ],
)
def test_blocks_whose_second_pass_shows_are_left_alone(effect: str) -> None:
    assert rewritten("checkpoint-blocks", BLOCKS.format(effect=effect), rule="memory-pressure") is None


def test_hooked_blocks_are_left_alone() -> None:
    text = BLOCKS.format(effect="pass") + "\n\nNet().blocks[0].register_forward_hook(print)\n"
    assert rewritten("checkpoint-blocks", text, rule="memory-pressure") is None
