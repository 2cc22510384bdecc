"""Which classes of modules no part of a run builds, though its first step had no instance of others either."""

from __future__ import annotations

import pytest

from diagnose.model import Site
from diagnose.source.models.unused_classes import unused_classes

SITES = [Site("module classes", "train.py", 1, None, {"classes": "Net"})]
PROGRAM = """import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return {forward}


class Base(nn.Module):
    {base}


class Other(Base):
    def __init__(self, net):
        net.register_forward_hook(print)

    @staticmethod
    def of(net):
        return net


MODELS = {{"net": Net, "other": Other}}


def pick(name):
    return Net() if name == "net" else Other(Net())


def evaluate(model):
    return isinstance(model, Other)


def train(model: Other):
    for x in batches:
        loss = {loss}
        loss.backward()
        optimizer.step()
        evaluate(model)


{main}
"""


def unused(
    main: str = 'train(pick("net"))', loss: str = "model(x).sum()", forward: str = "x", base: str = "pass"
) -> set[str]:
    text = PROGRAM.format(main=main, loss=loss, forward=forward, base=base)
    return {name for _, name in unused_classes({"train.py": text}, SITES)}


@pytest.mark.parametrize("main", ['train(pick("net"))', 'if __name__ == "__main__":\n    train(MODELS["net"]())'])
def test_what_a_choice_before_training_leaves_out_is_unused(main: str) -> None:
    assert unused(main) == {"Base", "Other"}


@pytest.mark.parametrize(
    "main",
    [
        'for name in ["net", "other"]:\n    train(pick(name))',
        'for name in ["net", "other"]:\n    train(MODELS[name]())',
        "train(Net())\ntrain(Other(Net()))",
        'def run(name):\n    train(pick(name))\n\n\nrun("net")\nrun("other")',
    ],
)
def test_what_may_be_built_once_training_has_begun_is_used_with_its_bases(main: str) -> None:
    assert unused(main) == set()


def test_what_a_step_makes_and_drops_or_calls_without_an_instance_is_used() -> None:
    assert unused(loss="model(x).sum() + Other(model)(x)") == set()
    assert unused(loss="Other.of(model)(x).sum()") == set()
    assert unused(forward="Other(self)(x)") == set()
    assert unused(forward="Base()(x)") == {"Other"}


def test_what_an_unused_class_would_build_is_unused() -> None:
    assert unused(base="def forward(self, x):\n        return Other(self)(x)") == {"Base", "Other"}


def test_none_is_looked_for_without_a_training_step() -> None:
    text = PROGRAM.format(main="", loss="model(x)", forward="x", base="pass").replace("loss.backward()", "pass")
    assert unused_classes({"train.py": text}, SITES) == frozenset()
