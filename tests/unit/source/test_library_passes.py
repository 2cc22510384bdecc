"""Steps whose backward pass an object of a library makes, as timm's scalers of the loss do."""

from __future__ import annotations

import pytest

from diagnose.source.training.every_step import EveryStep
from diagnose.source.training.training_loop import training_steps

PROGRAM = """
from timm.utils import NativeScaler

def train(model, loader, optimizer, loss_scaler):
    for x, y in loader:
        outputs = model(x)
        loss = criterion(outputs, y)
        optimizer.zero_grad()
        {step}

train(model, loader, optimizer, NativeScaler())
"""
HANDED_ON = "loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())"


@pytest.mark.parametrize(
    ("old", "new"),
    [("scaler", "scaler"), ("loss_scaler", "lossScaler"), ("optimizer", "g_opt")],
)
def test_the_loop_that_hands_its_loss_and_optimizer_on_is_the_loop_of_steps(old: str, new: str) -> None:
    sources = {"train.py": PROGRAM.replace("{step}", HANDED_ON).replace(old, new)}
    (step,) = training_steps(sources)
    assert (step.loss, step.model, step.hands_loss_on) == ("loss", "model", True)
    assert [stretch.loop for stretch in EveryStep(sources).stretches if stretch.loop is not None] == [step.loop]


@pytest.mark.parametrize(
    "step",
    [
        *("loss_scaler(loss)", "loss_scaler(loss, x)", "scale(loss, optimizer)", "scalers.update(loss, optimizer)"),
        *("x = scaler(outputs, options)", "x = standard_scaler(outputs, opts)"),
    ],
)
def test_other_calls_are_no_backward_passes(step: str) -> None:
    sources = {"train.py": PROGRAM.replace("{step}", step)}
    assert not training_steps(sources)
    assert not EveryStep(sources).stretches


def test_a_backward_pass_of_the_program_itself_is_the_one_that_counts() -> None:
    sources = {"train.py": PROGRAM.replace("{step}", HANDED_ON), "other.py": "for x in data:\n    f(x).backward()\n"}
    assert [step.path for step in training_steps(sources)] == ["other.py"]
    assert {stretch.path for stretch in EveryStep(sources).stretches} == {"other.py"}
