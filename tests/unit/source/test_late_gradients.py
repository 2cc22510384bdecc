"""Programs in which some parameters get their first gradient in a later step than others, and look-alikes."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from diagnose.source.optimizers.late_gradients import late_gradients

PROGRAM = """
import random
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, first, second=None, depth=2):
        super().__init__()
        self.first, self.second, self.depth = first, second, depth
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.downsample = second
        self.frozen = False

    def forward(self, x, task=0, features=False):
{forward}


model = Net(nn.Linear(4, 4))
helper = nn.Linear(4, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(9):
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
{step}
        optimizer.step()
"""
ONCE = "loss = criterion(model(x), y)\nloss.backward()"


def program(forward: str = "return self.first(x)", step: str = ONCE) -> str:
    return PROGRAM.format(forward=indent(dedent(forward), " " * 8), step=indent(dedent(step), " " * 8))


@pytest.mark.parametrize(
    "forward",
    [
        "return self.first(x) if task == 0 else self.second(x)",
        "return self.layers[task](x)",
        "if random.random() < 0.5:\n    return x\nreturn self.first(x)",
        "for layer in self.layers:\n    if random.random() < 0.5:\n        x = layer(x)\nreturn x",
        "for layer in self.layers:\n    if random.random() < 0.5:\n        continue\n    x = layer(x)\nreturn x",
        "for layer in self.layers[:task]:\n    x = layer(x)\nreturn x",
        "for i in range(task):\n    x = self.layers[i](x)\nreturn x",
        "with torch.set_grad_enabled(task > 0):\n    x = self.first(x)\nreturn self.second(x)",
        "x = self.first(x)\nif task == 0:\n    x = x.detach()\nreturn self.second(x)",
        "active = self.layers[: 1 + task]\nfor layer in active:\n    x = layer(x)\nreturn x",
        "return random.choice(self.layers)(x)",
        "for layer in random.sample(list(self.layers), 2):\n    x = layer(x)\nreturn x",
        "while task > 2:\n    x = self.second(x)\n    task -= 1\nreturn self.first(x)",
        "match task:\n    case 4:\n        x = self.second(x)\nreturn self.first(x)",
        "try:\n    check(task)\n    x = self.second(x)\nexcept ValueError:\n    pass\nreturn self.first(x)",
        "more = task > 2 and self.second(x)\nreturn self.first(x) + more",
        "return {True: self.first, False: self.second}[task > 2](x)",
        "if task > 2:\n    x = F.linear(x, self.second.weight)\nreturn self.first(x)",
        "with torch.no_grad() if task < 2 else nullcontext():\n    x = self.first(x)\nreturn self.second(x)",
    ],
)
def test_a_module_that_leaves_layers_out_now_and_then(forward: str) -> None:
    assert late_gradients({"train.py": program(forward, "loss = criterion(model(x, step), y)\nloss.backward()")})


@pytest.mark.parametrize(
    "step",
    [
        "loss = criterion(model(x), y)\nif epoch > 3:\n    loss = loss + helper(x).mean()\nloss.backward()",
        "if step % 2:\n    loss = model(x).mean()\nelse:\n    loss = helper(x).mean()\nloss.backward()",
        "out, aux = model(x)\nloss = criterion(out, y)\nif epoch > 3:\n    loss += criterion(aux, y)\nloss.backward()",
        "main = model(x).mean()\nmore = helper(x).mean()\nmain.backward()\nif epoch > 3:\n    more.backward()",
        "if epoch == 3:\n    for p in model.parameters():\n        p.requires_grad = True\n" + ONCE,
        "if epoch == 3:\n    model.first.requires_grad_(True)\n" + ONCE,
        "loss = heads[y](x).mean()\nloss.backward()",
        "out, aux = model(x)\nloss = criterion(out, y) + (criterion(aux, y) if epoch > 3 else 0)\nloss.backward()",
        "loss = model(x).mean()\nif epoch > 3:\n    loss = loss + model.second(x).mean()\nloss.backward()",
        "if epoch == 3:\n    for p in model.parameters():\n        setattr(p, 'requires_grad', True)\n" + ONCE,
    ],
)
def test_a_step_that_leaves_parts_out_now_and_then(step: str) -> None:
    assert late_gradients({"train.py": program(step=step)})


def test_a_function_that_frees_parameters_between_epochs() -> None:
    text = program().replace(
        "model = Net", "def free(net):\n    for p in net.parameters():\n        p.requires_grad = True\n\n\nmodel = Net"
    )
    assert late_gradients({"train.py": text}) is None
    assert late_gradients({"train.py": text.replace("    for step", "    free(model)\n    for step")})


@pytest.mark.parametrize(
    "forward",
    [
        "y = self.first(x)\nif self.downsample is not None:\n    x = self.downsample(x)\nreturn x + y",
        "if self.depth > 2:\n    x = self.second(x)\nreturn self.first(x)",
        "if x.dim() == 3:\n    x = x.flatten(1)\nreturn self.first(x)",
        "for i in range(self.depth):\n    x = self.layers[i](x)\nreturn x",
        "for i in range(len(self.layers)):\n    x = self.layers[i](x)\nreturn x",
        "for layer in self.layers[:-1]:\n    x = layer(x).relu()\nreturn self.layers[-1](x)",
        "if features:\n    return x\nreturn self.first(x)",
        "return x + (self.second(x) if hasattr(self, 'second') else x)",
        "if len(self.layers) > 1:\n    x = self.second(x)\nreturn self.first(x)",
        "for i, layer in enumerate(self.layers):\n    x = layer(x)\n    if i != len(self.layers) - 1:\n"
        "        x = self.second(x)\nreturn x",
        "if x.requires_grad:\n    x = checkpoint(self.first, x)\nelse:\n    x = self.first(x)\nreturn x",
        "if not self.training:\n    return self.first(x).softmax(-1)\nreturn self.first(x)",
        "if self.training and self.first(x).mean() > 0:\n    x = x.flatten(1)\nreturn self.first(x)",
        "with torch.no_grad() if self.frozen else nullcontext():\n    x = self.first(x)\nreturn self.second(x)",
        "layers = self.layers[1:]\nfor layer in layers:\n    x = layer(x)\nreturn x",
        "if x.shape[1] != 4:\n    raise ValueError(x.shape)\nreturn self.first(x)",
    ],
)
def test_a_module_that_calls_the_same_layers_in_every_step(forward: str) -> None:
    assert late_gradients({"train.py": program(forward)}) is None


@pytest.mark.parametrize(
    "step",
    [
        ONCE + "\nif step % 10 == 0:\n    print(step, loss.item())",
        "loss = criterion(model(x), y)\nif not torch.isfinite(loss):\n    continue\nloss.backward()",
        "if random.random() < 0.5:\n    out = model(x)\n    loss = 0.3 * criterion(out, y) + 0.7 * criterion(out, x)\n"
        "else:\n    out = model(x)\n    loss = criterion(out, y)\nloss.backward()",
        "out = model(x)\nloss = criterion(out, y)\nif scaler is not None:\n    scaler.scale(loss).backward()\n"
        "else:\n    loss.backward()",
        "loss = criterion(model(x), y)\nif epoch > 3:\n    loss = loss + sum(map(size, model.parameters()))\n"
        "loss.backward()",
        ONCE + "\nif step % 10 == 0:\n    with torch.no_grad():\n        print(helper(x).mean())",
        ONCE + "\nif step % 10 == 0:\n    evaluate(model, loader)",
        "x.requires_grad_(True)\n" + ONCE,
        ONCE + "\nif step % 10 == 0:\n    model.train()\n    optimizer.step()\n    print(loss.item() if step else 0)",
        "if epoch == 3:\n    model.first.requires_grad_(False)\n" + ONCE,
    ],
)
def test_a_step_that_takes_the_same_layers_each_time(step: str) -> None:
    assert late_gradients({"train.py": program(step=step)}) is None


def test_layers_that_are_frozen_before_training() -> None:
    freeze = "for p in model.first.parameters():\n    p.requires_grad = False\noptimizer ="
    assert late_gradients({"train.py": program().replace("optimizer =", freeze, 1)}) is None
    half = freeze.replace("= False", "= p.dim() > 1")
    assert late_gradients({"train.py": program().replace("optimizer =", half, 1)}) is None


MAKER = """    def _make(self, kind):
        return nn.Sequential(self.layers(kind), self.first) if kind > 1 else nn.Sequential(self.first(kind))

"""
MADE = "self.frozen = False\n"


@pytest.mark.parametrize(
    ("constructor", "forward", "late"),
    [
        ("self.block = self._make(depth)", "return self.block(x)", False),
        ("self.block = self._deeper(depth)", "return self.block(x)", False),
        ("self.block = self._make(depth)", "return self._make(task)(x)", True),
        ("self.block = second", "return self.block(x)", True),
    ],
    ids=["by the constructor", "by a method of its", "by a step too", "by whoever"],
)
def test_a_method_that_only_builds_leaves_nothing_out_of_a_step(constructor: str, forward: str, late: bool) -> None:
    deeper = "    def _deeper(self, kind):\n        return self._make(kind + 1)\n\n"
    text = program(forward).replace(MADE, f"{MADE}        {constructor}\n")
    text = text.replace("    def forward", MAKER + deeper * ("_deeper" in constructor) + "    def forward")
    assert (late_gradients({"train.py": text}) is not None) is late
