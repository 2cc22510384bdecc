"""Which classes of modules a run had no instance of, and what their code no longer stands in the way of."""

from __future__ import annotations

import pytest

from diagnose.model import Site
from diagnose.source.derivatives import second_derivative
from diagnose.source.rewrite.hooks import module_hook
from diagnose.source.training.repeated_forward import forward_effect
from diagnose.source.tree.built_classes import unbuilt_classes

NET = """import random
from torch import nn


class Base(nn.Module):
    pass


class Net(Base):
    def forward(self, x):
        return x


class Other(Base):
    def forward(self, x):
        {effect}
        return x


class Metric:
    def forward(self, x):
        {plain}
        return x
"""


def built(*names: str) -> list[Site]:
    return [Site("module classes", "net.py", 1, None, {"classes": ", ".join(names)})] if names else []


def program(effect: str = "pass", plain: str = "pass") -> dict[str, str]:
    return {"net.py": NET.format(effect=effect, plain=plain)}


def test_classes_of_modules_without_an_instance_are_unbuilt_and_plain_classes_are_not() -> None:
    assert unbuilt_classes(program(), built("Base", "Net")) == {("net.py", "Other")}


def test_classes_derived_from_what_may_be_no_module_are_not_unbuilt() -> None:
    engine = (
        "class Base:\n    pass\n\n\nclass Trainer(Base):\n    pass\n\n\nclass Data(LightningDataModule):\n    pass\n"
    )
    assert unbuilt_classes({**program(), "engine.py": engine}, built("Base", "Net")) == frozenset()


def test_a_class_within_an_unbuilt_one_may_be_built() -> None:
    text = NET.format(effect="pass", plain="pass") + "\n\nclass Zoo(nn.Module):\n    class Net(nn.Module):\n"
    text += "        def __init__(self):\n            self.register_forward_hook(print)\n"
    unbuilt = unbuilt_classes({"net.py": text}, built("Base", "Net"))
    assert ("net.py", "Zoo") in unbuilt
    assert module_hook({"net.py": text}, unbuilt) == "net.py:29"


def test_without_a_run_that_tells_none_is_unbuilt() -> None:
    assert unbuilt_classes(program(), built()) == frozenset()


@pytest.mark.parametrize(
    ("question", "effect"),
    [
        (forward_effect, "print(x)"),
        (forward_effect, "x = x * random.random()"),
        (module_hook, "self.net.register_forward_hook(seen)"),
        (second_derivative, "torch.autograd.grad(x, y, create_graph=True)"),
    ],
)
def test_what_an_unbuilt_class_does_does_not_count(question: object, effect: str) -> None:
    assert callable(question)
    sources = program(effect)
    assert question(sources, unbuilt_classes(sources, built("Base", "Net"))) is None
    assert str(question(sources, unbuilt_classes(sources, built("Base", "Net", "Other")))).startswith("net.py:16")
    assert str(question(sources, unbuilt_classes(sources, built()))).startswith("net.py:16"), "no run tells"


def test_what_a_class_that_is_no_module_does_counts() -> None:
    sources = program(plain="print(x)")
    found = forward_effect(sources, unbuilt_classes(sources, built("Base", "Net")))
    assert found == "net.py:22 calls `print`"
