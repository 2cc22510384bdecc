"""A loss is followed to a function only where nothing else can stand in its place, and the call of a model is put off
only where that changes no number."""

from __future__ import annotations

import pytest
from rewriting import FIXERS

from diagnose.fixer import Advice, Answer, Edits, Request, example_request

HEAD = """import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from functools import partial


"""
MODEL = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(19, 8)
        self.head = nn.Linear(8, 19)

    def forward(self, idx):
        return self.head(self.wte(idx))


class Other(nn.Module):
    def forward(self, idx):
        return F.one_hot(idx, 19).float()


def smooth_loss(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)


"""
)
PLAIN = "def token_loss(logits, y):\n    return F.cross_entropy(logits.flatten(0, 1), y.flatten())\n"
STEP = "\n\nmodel = Model()\nfor x, y in batches:\n    loss = token_loss(model(x), y)\n    loss.backward()\n"
CRITERION = (
    "class Loss(nn.Module):\n    def forward(self, logits, y):\n"
    "        return F.cross_entropy(logits.flatten(0, 1), y.flatten())\n\n\ntoken_loss = Loss()\n"
)
MEMBER = (
    PLAIN
    + """

class Trainer:
    def __init__(self, model, loss_fn):
        self.model = model
        self.loss_fn = loss_fn

    def train(self, batches):
        for x, y in batches:
            logits = self.model(x)
            loss = self.loss_fn(logits, y)
            loss.backward()


model = Model()
trainer = Trainer(model, token_loss)
"""
)
PASSED = (
    PLAIN
    + """

def train(model, loss_fn, batches):
    for x, y in batches:
        loss = loss_fn(model(x), y)
        loss.backward()


model = Model()
train(model, token_loss, batches)
"""
)


def asked(text: str, **others: str) -> Answer:
    request = example_request("unfused-loss", MODEL + text)
    sources = {**request.sources, **{f"{name}.py": HEAD + other for name, other in others.items()}}
    return FIXERS["fuse-linear-cross-entropy"].rewrite(Request(request.finding, sources, entry="train.py"))


def of_file(losses: str) -> Answer:
    return asked("from losses import token_loss\n" + STEP, losses=losses)


@pytest.mark.parametrize("text", [PLAIN + STEP, CRITERION + STEP, MEMBER, PASSED])
def test_a_loss_with_one_way_to_it_is_followed(text: str) -> None:
    assert isinstance(asked(text), Edits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("token_loss = Loss()", "class Twice(Loss):\n    pass\n\n\ntoken_loss = Twice()"),
        (
            "    def forward",
            "    def __call__(self, logits, y):\n        return 2 * self.forward(logits, y)\n\n    def forward",
        ),
        ("class Loss(nn.Module)", "class Loss(Doubled)"),
        ("class Loss(nn.Module)", "class Loss"),
    ],
)
def test_an_instance_that_may_do_more_than_its_forward_is_not_followed(before: str, after: str) -> None:
    assert before in CRITERION
    assert not isinstance(asked(CRITERION.replace(before, after) + STEP), Edits)


@pytest.mark.parametrize(
    ("after", "followed"),
    [
        ("", True),
        ("\ntoken_loss = torch.compile(token_loss)\n", True),
        ("\ntoken_loss = doubled(token_loss)\n", False),
        ("\nif SMOOTH:\n\n    def token_loss(logits, y):\n        return smooth_loss(logits, y)\n", False),
    ],
)
def test_a_function_of_another_file_is_what_its_name_is_bound_to_last(after: str, followed: bool) -> None:
    assert isinstance(of_file(PLAIN + after), Edits) is followed


@pytest.mark.parametrize(
    "after",
    [
        "trainer.loss_fn = smooth_loss\n",
        'setattr(trainer, "loss_fn", smooth_loss)\n',
        "class Smooth(Trainer):\n    def __init__(self, model):\n        super().__init__(model, smooth_loss)\n",
        "class Smooth(Trainer):\n    def on_start(self):\n        self.loss_fn = smooth_loss\n",
        "second = partial(Trainer, model, smooth_loss)\n",
    ],
)
def test_a_member_that_an_instance_or_a_subclass_has_others_for_is_not_followed(after: str) -> None:
    assert not isinstance(asked(MEMBER + after), Edits)


def test_a_function_that_others_may_call_gets_other_losses() -> None:
    assert not isinstance(asked(PASSED + "second = partial(train, model, smooth_loss)\n"), Edits)
    assert isinstance(asked(PASSED + "model.fit(train=True)\n"), Edits)


@pytest.mark.parametrize(
    ("built", "always"),
    [
        ("model = Model() if large else Other()", False),
        ("if large:\n    model = Model()\nelse:\n    model = Other()", False),
        ("model = Model().to(device) if small else Model()", True),
        ("model = Model()\nmodel = torch.compile(model)", True),
    ],
)
def test_a_model_that_may_be_another_is_given_no_targets(built: str, always: bool) -> None:
    answer = asked(PLAIN + STEP.replace("model = Model()", built))
    assert isinstance(answer, Edits) is always
    assert always or (isinstance(answer, Advice) and "may be of several classes" in answer.text)


TOGETHER = "    loss = token_loss(model(x), y)\n"
APART = PLAIN + STEP.replace(TOGETHER, "    logits = model(x)\n    ...\n    loss = token_loss(logits, y)\n")


@pytest.mark.parametrize(
    ("between", "moves"),
    [
        ("optimizer.zero_grad()", True),
        ("y = torch.where(torch.rand(y.shape) < 0.2, -100, y)", False),
        ("random.shuffle(rows)", False),
        ("average.step()", False),
        ("model.eval()", False),
    ],
)
def test_a_model_is_not_called_after_what_it_was_called_before(between: str, moves: bool) -> None:
    answer = asked(APART.replace("...", between))
    assert isinstance(answer, Edits) is moves, answer


def test_what_a_call_does_beside_goes_on() -> None:
    text = PLAIN.replace("y):", "y, step):") + STEP
    assert isinstance(asked(text.replace("(model(x), y)", "(model(x), y, 1)")), Edits)
    assert not isinstance(asked(text.replace("(model(x), y)", "(model(x), y, next(steps))")), Edits)


@pytest.mark.parametrize("name", ["fuse-linear-cross-entropy", "fuse-cross-entropy"])
def test_programs_that_take_gradients_of_gradients_keep_torchs_loss(name: str) -> None:
    penalty = "    torch.autograd.grad(loss, model.parameters(), create_graph=True)\n"
    for text, fused in ((PLAIN + STEP, True), (PLAIN + STEP + penalty, False)):
        answer = FIXERS[name].rewrite(example_request("unfused-loss", MODEL.split("def smooth")[0] + text))
        assert isinstance(answer, Edits) is fused


def test_a_compiler_of_the_model_is_not_said_to_see_a_loss_beside_it() -> None:
    answer = asked(PLAIN.replace("y.flatten()", "y.flatten().clamp(0)") + STEP)
    assert isinstance(answer, Advice)
    assert "compile" not in answer.text
