"""Of a model whose own forward pass alone does more than compute, the module that it keeps and calls is compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compile_programs import request

from diagnose.fixer import Advice, Edits, Site
from diagnose.plugins import load

FIXER = load().fixers["compile-model"]
PROGRAM = """import random
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        {inner}
        return x


class Other(nn.Module):
    def forward(self, x):
        {other}
        return x


class Diffusion(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def losses(self, x):
        if random.random() < 0.5:
            x = self.model(x)
        return self.model(x).mean()

    def forward(self, x):
        return self.losses(x)


class Trainer:
    def __init__(self, diffusion):
        self.model = diffusion
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, batches):
        for batch in batches:
            loss = self.model(batch)
            loss.backward()
            self.optimizer.step()


net = Net()
diffusion = Diffusion({given})
Trainer(diffusion).train([torch.randn(4, 8)])
"""


def rewritten(
    inner: str = "pass", other: str = "pass", given: str = "net", classes: str = "Diffusion, Net"
) -> str | Advice:
    asked = request(PROGRAM.format(inner=inner, other=other, given=given))
    site = Site("module classes", "train.py", 1, None, {"classes": classes})
    answer = FIXER.rewrite(replace(asked, sites=[site]))
    assert answer is not None
    return answer.files["train.py"] if isinstance(answer, Edits) else answer


@pytest.mark.parametrize("other", ["pass", "print(x)"])
def test_the_inner_module_is_compiled_where_it_is_built(other: str) -> None:
    text = rewritten(other=other)
    assert isinstance(text, str)
    assert "\nnet = Net()\nnet.compile()\ndiffusion = Diffusion(net)\n" in text
    assert text.count(".compile()") == 1


@pytest.mark.parametrize(
    "case",
    [
        {"inner": "print(x)"},
        {"other": "print(x)", "classes": "Diffusion, Net, Other"},
        {"given": "load()"},
    ],
)
def test_a_model_is_left_alone_where_others_do_more_than_compute_or_the_inner_one_is_not_found(
    case: dict[str, str],
) -> None:
    answer = rewritten(**case)
    assert isinstance(answer, Advice)
    assert "train.py:" in answer.text and "in a forward pass" in answer.text


def test_a_model_is_left_alone_where_the_inner_one_is_of_a_class_derived_from_its_own() -> None:
    text = PROGRAM.format(inner="pass", other="pass", given="net")
    asked = request(text.replace("class Net(nn.Module)", "class Net(Diffusion)"))
    answer = FIXER.rewrite(asked)
    assert isinstance(answer, Advice)
    assert "in a forward pass" in answer.text


@pytest.mark.parametrize("built", [False, True])
def test_a_class_derived_from_the_outer_one_counts_only_where_a_run_builds_it(built: bool) -> None:
    text = PROGRAM.format(inner="pass", other="pass", given="net")
    asked = request(text.replace("class Trainer", "class Learned(Diffusion):\n    pass\n\n\nclass Trainer"))
    classes = "Diffusion, Net, Learned" if built else "Diffusion, Net"
    answer = FIXER.rewrite(replace(asked, sites=[Site("module classes", "train.py", 1, None, {"classes": classes})]))
    assert isinstance(answer, Advice if built else Edits)
