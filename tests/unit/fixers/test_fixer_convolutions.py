"""channels-last and cudnn-benchmark on whole programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Facts, example_request
from diagnose.plugins import load

FIXERS = load().fixers

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
"""


def test_the_search_is_on_for_runs_that_do_not_ask_for_determinism() -> None:
    facts = Facts(cudnn_benchmark=False, cudnn_deterministic=False)
    answer = FIXERS["cudnn-benchmark"].rewrite(example_request("conv-heuristics", IMAGENET, facts=facts))
    assert isinstance(answer, Edits)
    names: dict[str, Any] = {}
    before = torch.backends.cudnn.benchmark
    try:
        exec(compile(answer.files["train.py"], "train.py", "exec"), names)
        names["main"]()
        assert torch.backends.cudnn.benchmark is True
        names["main"](1)
        assert torch.backends.cudnn.benchmark is False
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


def test_the_twins_of_a_model_that_a_step_calls_are_laid_out_too() -> None:
    pair = (
        "import torch\nfrom zoo import Small\n\nfirst = Small()\nsecond = Small()\n"
        "optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()])\nfor x in loader:\n"
        "    loss = first(x).sum() + second(x).sum()\n    loss.backward()\n"
    )
    text = laid_out(pair, **{"zoo.py": CLASSIFIER.format(name="Small")}).files["train.py"]
    assert "first.to(memory_format" in text
    assert "second.to(memory_format" in text


WORDS = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(8, 8)

    def forward(self, x):
        return self.cell(x)[0]
"""


def test_of_two_models_in_a_row_those_with_convolutions_are_laid_out() -> None:
    row = (
        "import torch\nfrom zoo import *\n\nencoder = Small()\ndecoder = {}()\nfor x in loader:\n"
        "    seen = encoder(x)\n    loss = decoder(seen).sum()\n    loss.backward()\n"
    )
    zoo = CLASSIFIER.format(name="Small") + CLASSIFIER.format(name="Large") + WORDS
    for name, laid in (("Large", True), ("Words", False)):
        text = laid_out(row.format(name), **{"zoo.py": zoo}).files["train.py"]
        assert "encoder.to(memory_format" in text
        assert ("decoder.to(memory_format" in text) is laid


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


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("torch.relu_(features.view(-1))", "a view is written to"),
        ("shrink_(features.view(8, -1))", "a view is written to"),
        ("class Scene:\n    def view(self, x):\n        return x", "`view` is a function of the program's own"),
    ],
)
def test_views_that_no_copy_stands_for_keep_the_layout(line: str, asked: str) -> None:
    main = SEVERAL_MODELS.format(name="Small", inputs="x", moved="x = x.to(device)")
    request = example_request("layout-transposes", f"{main}\n{line}\n")
    sources = {**request.sources, "small.py": CLASSIFIER.format(name="Small")}
    answer = FIXERS["channels-last"].rewrite(replace(request, sources=sources))
    assert isinstance(answer, Advice)
    assert asked in answer.text


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("bank.copy_(features.view(8, -1))", "bank.copy_(features.reshape(8, -1))"),
        ("bank = torch.zeros(8, 9)\nbank.copy_(features.view(8, -1))", "bank.copy_(features.reshape(8, -1))"),
        ("bits = array.view(np.uint8)", "array.view(np.uint8)"),
        ("rows = features.contiguous().view(8, -1)", "features.contiguous().view(8, -1)"),
        ("rows = features.contiguous()\nrows = rows.view(8, -1)", "rows.view(8, -1)"),
        (
            "rows = features.contiguous()\nif deep:\n    rows = net(rows)\nrows = rows.view(8, -1)",
            "rows.reshape(8, -1)",
        ),
        ("rows = features.contiguous(memory_format=kept).view(8, -1)", "(memory_format=kept).reshape(8, -1)"),
        ("rows = features.new_tensor(features).view(8, -1)", "features.new_tensor(features).reshape(8, -1)"),
        ("rows = torch.tensor(features).view(8, -1)", "torch.tensor(features).reshape(8, -1)"),
        ("rows = torch.zeros(8, 9).view(4, -1)", "torch.zeros(8, 9).view(4, -1)"),
        ("bits = array.view('uint8')", "array.view('uint8')"),
        ("bits = array.view(int)", "array.view(int)"),
    ],
)
def test_a_view_of_sizes_alone_is_reshaped(line: str, after: str) -> None:
    main = SEVERAL_MODELS.format(name="Small", inputs="x", moved="x = x.to(device)")
    answer = laid_out(f"import numpy as np\n{main}\n{line}\n", **{"small.py": CLASSIFIER.format(name="Small")})
    assert after in answer.files["train.py"]


def test_a_view_that_is_filled_stays_a_view() -> None:
    main = SEVERAL_MODELS.format(name="Small", inputs="x", moved="x = x.to(device)")
    filled = CLASSIFIER.format(name="Small").replace(
        "Conv2d(3, 8, 3)\n", "Conv2d(3, 8, 3)\n        nn.init.xavier_uniform_(self.first.weight.view(8, -1))\n"
    )
    text = laid_out(main, **{"small.py": filled}).files["small.py"]
    assert "weight.view(8, -1)" in text
    assert "(x).reshape(x.size(0), -1)" in text


def test_the_layout_comes_after_the_branch_that_draws_or_loads_the_weights() -> None:
    """Draws fill memory in its order: laid out before them, each weight would have another element's number."""
    branch = (
        "import torch\nfrom zoo import Small, start\n\nmodel = Small()\nif cuda:\n    model.cuda()\n"
        "if resumed:\n    model.load_state_dict(torch.load(path))\nelif drawn:\n    model.apply(start)\n"
        "optimizer = torch.optim.SGD(model.parameters())\nfor x in loader:\n"
        "    loss = model(x).sum()\n    loss.backward()\n"
    )
    start = "\n\ndef start(module):\n    if isinstance(module, nn.Conv2d):\n        nn.init.normal_(module.weight)\n"
    answer = laid_out(branch, **{"zoo.py": CLASSIFIER.format(name="Small") + start})
    assert "    model.apply(start)\nmodel.to(memory_format=torch.channels_last)\n" in answer.files["train.py"]
    assert answer.gate is None
