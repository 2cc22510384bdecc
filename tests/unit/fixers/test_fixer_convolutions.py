"""channels-last, cudnn-benchmark and conv-bias-before-norm on whole programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Facts, Gate, example_request
from diagnose.plugins import load

FIXERS = load().fixers

BLOCK = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, kernel_size=3, stride=1, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        out = self.bn2(out)
        return out
"""

SEQUENCE = """
import torch
import torch.nn as nn


def double_conv(given, wanted):
    return nn.Sequential(
        nn.Conv2d(given, wanted, kernel_size=3, padding=1),
        nn.BatchNorm2d(wanted),
        nn.ReLU(inplace=True),
        nn.Conv2d(wanted, wanted, 3, padding=1),
        nn.BatchNorm2d(wanted),
        nn.ReLU(inplace=True),
    )


def Net():
    return double_conv(3, 8)
"""

LISTED = """
import torch
from torch import nn
from torch.nn import BatchNorm2d, Conv2d


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(Conv2d(3, 8, 3, 1, 0, 1, 1, True), BatchNorm2d(8))
        self.last = Conv2d(8, 2, 1)

    def forward(self, x):
        return self.last(self.first(x))
"""


def made(text: str) -> torch.nn.Module:
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(text, "train.py", "exec"), names)
    model = names["Net"]()
    assert isinstance(model, torch.nn.Module)
    return model.double()


@pytest.mark.parametrize(("text", "fewer"), [(BLOCK, 2), (SEQUENCE, 2), (LISTED, 1)])
def test_outputs_and_gradients_do_not_need_the_bias(text: str, fewer: int) -> None:
    answer = FIXERS["conv-bias-before-norm"].rewrite(example_request("conv-heuristics", text))
    assert isinstance(answer, Edits)
    before, after = made(text), made(answer.files["train.py"])
    missing = set(before.state_dict()) - set(after.state_dict())
    assert len(missing) == fewer
    assert all(name.endswith("bias") for name in missing)
    after.load_state_dict({name: value for name, value in before.state_dict().items() if name not in missing})
    images = torch.rand(4, 3, 9, 9, dtype=torch.float64)
    outputs = [model(images) for model in (before, after)]
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-10)
    for output in outputs:
        (output * torch.sin(torch.arange(output.numel()).double()).view_as(output)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in before.named_parameters()}
    for name, parameter in after.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-7, atol=1e-9)


def test_a_program_with_fewer_parameters_is_another_training() -> None:
    assert FIXERS["conv-bias-before-norm"].gate is Gate.TRAINING


def test_a_result_that_is_used_beside_the_norm_keeps_its_bias() -> None:
    text = BLOCK.replace("out = self.bn2(out)\n        return out", "return self.bn2(out) + out")
    answer = FIXERS["conv-bias-before-norm"].rewrite(example_request("conv-heuristics", text))
    assert isinstance(answer, Edits)
    assert answer.files["train.py"].count("bias=False") == 1


IMAGENET = """
import random
import torch
import torch.backends.cudnn as cudnn


def main(seed=None):
    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)
        cudnn.deterministic = True
        cudnn.benchmark = False
    return torch.backends.cudnn.benchmark
"""


def test_the_search_is_on_for_runs_that_do_not_ask_for_determinism() -> None:
    facts = Facts(cudnn_benchmark=False, cudnn_deterministic=False)
    answer = FIXERS["cudnn-benchmark"].rewrite(example_request("conv-heuristics", IMAGENET, facts=facts))
    assert isinstance(answer, Edits)
    names: dict[str, Any] = {}
    before = torch.backends.cudnn.benchmark
    try:
        exec(compile(answer.files["train.py"], "train.py", "exec"), names)
        assert names["main"]() is True
        assert names["main"](1) is False
    finally:
        torch.backends.cudnn.benchmark = before
        torch.backends.cudnn.deterministic = False


def test_a_deterministic_run_stays_one() -> None:
    facts = Facts(cudnn_benchmark=False, cudnn_deterministic=True)
    answer = FIXERS["cudnn-benchmark"].rewrite(example_request("conv-heuristics", IMAGENET, facts=facts))
    assert isinstance(answer, Advice)


CLASSIFIER = """
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, x, *others):
        return self.first(x).view(x.size(0), -1).mean(1)
"""

SEVERAL_MODELS = """
import torch
from zoo import *

model = {name}().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for {inputs}, labels in loader:
    {moved}
    loss = torch.nn.functional.mse_loss(model({inputs}), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def laid_out(main: str, **others: str) -> Edits:
    """What channels-last changes of a program of several files."""
    request = example_request("layout-transposes", main)
    answer = FIXERS["channels-last"].rewrite(replace(request, sources={**request.sources, **others}))
    assert isinstance(answer, Edits), answer
    return answer


def test_models_of_a_folder_that_the_program_does_not_build_stay_as_they_are() -> None:
    main = SEVERAL_MODELS.format(name="Small", inputs="x", moved="x = x.to(device)")
    small, large = CLASSIFIER.format(name="Small"), CLASSIFIER.format(name="Large")
    answer = laid_out(main, **{"small.py": small, "large.py": large})
    assert set(answer.files) == {"train.py", "small.py"}
    assert ".reshape(" in answer.files["small.py"]


def test_every_view_is_rewritten_where_the_model_is_found_by_other_means_than_its_name() -> None:
    main = SEVERAL_MODELS.format(name="registry['Small']", inputs="x", moved="x = x.to(device)")
    small, large = CLASSIFIER.format(name="Small"), CLASSIFIER.format(name="Large")
    assert set(laid_out(main, **{"small.py": small, "large.py": large}).files) == {"train.py", "small.py", "large.py"}


def test_one_image_of_a_pair_is_not_laid_out_without_the_other() -> None:
    pair = SEVERAL_MODELS.format(name="Small", inputs="x1, x2", moved="x1, x2 = x1.to(device), x2.to(device)")
    answer = laid_out(pair, **{"small.py": CLASSIFIER.format(name="Small")})
    assert "x1, x2 = x1.to(device), x2.to(device)" in answer.files["train.py"]
    assert "model.to(memory_format=torch.channels_last)" in answer.files["train.py"]


def test_a_view_that_is_filled_stays_a_view() -> None:
    main = SEVERAL_MODELS.format(name="Small", inputs="x", moved="x = x.to(device)")
    filled = CLASSIFIER.format(name="Small").replace(
        "Conv2d(3, 8, 3)\n", "Conv2d(3, 8, 3)\n        nn.init.xavier_uniform_(self.first.weight.view(8, -1))\n"
    )
    text = laid_out(main, **{"small.py": filled}).files["small.py"]
    assert "weight.view(8, -1)" in text
    assert "(x).reshape(x.size(0), -1)" in text
