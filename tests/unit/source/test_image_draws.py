"""Random numbers for each element of an image, which another order in memory gives to other elements."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest
import torch

from diagnose.fixer import Edits, Gate, example_request
from diagnose.plugins import load
from diagnose.source.models.image_draws import image_draw

FIXER = load().fixers["channels-last"]

PROGRAM = """
import torch
from torch import nn
import torch.nn.functional as F
{above}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 8)
        self.drop = nn.{layer}
        self.head = nn.Sequential({head})

    def forward(self, x):
{forward}

model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    images, labels = images.to(device), labels.to(device)
    {step}
    loss = model(images).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FLAT = "x = self.conv(x).mean((2, 3))\nreturn self.fc1(x)"
PICTURES = "class Pictures(nn.Module):\n    def forward(self, x):\n        return self.up(x.view(-1, 8, 2, 2))\n"


def program(
    forward: str = FLAT,
    layer: str = "Dropout(0.0)",
    head: str = "nn.Linear(8, 8)",
    step: str = "images = images + 0",
    above: str = "",
) -> str:
    return PROGRAM.format(above=above, layer=layer, head=head, step=step, forward=indent(dedent(forward), " " * 8))


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        (program("x = self.drop(self.conv(x))\nreturn self.fc1(x.flatten(1))", "Dropout(0.25)"), "nn.Dropout(0.25)"),
        (program("x = F.dropout(self.conv(x), 0.2)\nreturn x.mean((1, 2, 3))"), "F.dropout(self.conv(x), 0.2)"),
        (program(layer="Dropout(p)", forward="return self.fc1(self.drop(self.conv(x)))"), "nn.Dropout(p)"),
        (program(head="nn.Conv2d(8, 8, 3), nn.Dropout(), nn.Conv2d(8, 8, 3)"), "nn.Dropout()"),
        (
            program("x = self.fc1(x).view(-1, 8, 4, 4)\nreturn self.drop(self.conv(x)).sum()", "Dropout(0.5)"),
            "nn.Dropout(0.5)",
        ),
        (
            program("x = x * self.fc1(x.mean((2, 3)))[:, :, None, None]\nreturn self.drop(x).sum()", "Dropout(0.5)"),
            "nn.Dropout(0.5)",
        ),
        (program("x = self.conv(x).view(*sizes, -1)\nreturn self.drop(x).sum()", "Dropout(0.5)"), "nn.Dropout(0.5)"),
        (program("x = x - x.mean()\nreturn self.drop(self.conv(x)).sum()", "Dropout(0.5)"), "nn.Dropout(0.5)"),
        (program("x = self.conv(x).flatten(2)\nreturn self.drop(x).sum()", "Dropout(0.5)"), "nn.Dropout(0.5)"),
        (
            program(head="nn.Linear(8, 32), nn.Unflatten(1, (8, 2, 2)), nn.Conv2d(8, 8, 1), nn.Dropout()"),
            "nn.Dropout()",
        ),
        (program(head="nn.Linear(8, 32), Pictures(8, 2, 2), nn.Dropout()", above=PICTURES), "nn.Dropout()"),
        (program(head="nn.Linear(8, 32), Up(), nn.Dropout()", above="from layers import Up"), "nn.Dropout()"),
        (program("x = self.conv(x)\nx = x + torch.randn_like(x)\nreturn x.mean((1, 2, 3))"), "randn_like("),
        (program(step="images = images + torch.zeros_like(images).uniform_(-1, 1)"), "_like(images).uniform_("),
    ],
)
def test_elements_of_images_draw(text: str, drawn: str) -> None:
    assert image_draw({"train.py": text}) == drawn
    answer = FIXER.rewrite(example_request("layout-transposes", text))
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING
    assert drawn in answer.because


@pytest.mark.parametrize(
    "text",
    [
        program(),
        program("x = self.conv(x).flatten(1)\nreturn self.fc1(self.drop(x))", "Dropout(0.5)"),
        program("x = self.conv(x).mean((2, 3))\nreturn self.drop(F.relu(self.fc1(x)))", "Dropout(0.5)"),
        program("x = self.conv(x).mean((2, 3))\nreturn F.dropout(self.fc1(x), training=self.training)"),
        program("x = self.conv(x).flatten(1)\nx = self.norm(self.fc1(x)) * 2\nreturn self.drop(x)", "Dropout(0.5)"),
        program("x = torch.flatten(self.conv(x), 1)\nx = x.view(len(x), -1)\nreturn self.drop(x)", "Dropout(0.5)"),
        program("x = self.fc1(x)\nx = (x @ x.mT).softmax(-1)\nreturn self.drop(x)", "Dropout(0.5)"),
        program(head="nn.Flatten(), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 8)"),
        program(head="nn.Dropout(0.5), nn.Linear(8, 8)"),
        program(head="Up(), nn.Dropout(0.5), nn.Linear(8, 8)", above="from layers import Up"),
        program(layer="Dropout2d(0.5)", forward="return self.drop(self.conv(x))"),
        program(step="images = images + torch.randn(images.shape, device=device)"),
    ],
)
def test_rows_of_numbers_draw_as_before(text: str) -> None:
    assert image_draw({"train.py": text}) is None
    answer = FIXER.rewrite(example_request("layout-transposes", text))
    assert isinstance(answer, Edits)
    assert answer.gate is None


@pytest.mark.parametrize(
    ("draw", "same"), [(torch.nn.functional.dropout, False), (torch.rand_like, False), (torch.nn.Dropout2d(), True)]
)
def test_torch_draws_in_the_order_of_memory(draw: Callable[[torch.Tensor], torch.Tensor], same: bool) -> None:
    images = torch.ones(2, 4, 3, 3)
    torch.manual_seed(0)
    plain = draw(images)
    torch.manual_seed(0)
    assert torch.equal(plain, draw(images.contiguous(memory_format=torch.channels_last))) is same
