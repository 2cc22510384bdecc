"""Nodes are found by their names, and files that have none of these names are not parsed."""

from __future__ import annotations

import pytest

from diagnose.source.models.compilation import compilations
from diagnose.source.tree.syntax import Source, parse

TEXT = """
from torch.nn.parallel import DistributedDataParallel as Wrapped
from torch import optim
import numpy as np

def later():  # train(x)
    return Wrapped(model)

class Trainer:
    def train(self, step):
        step(np.mean(1))
        self.step = optim.Adam([])
        step(2)
        return later()
"""


def source_of(text: str) -> Source:
    found = parse(text)
    assert found is not None
    return found


def test_nodes_are_given_in_the_order_of_the_text() -> None:
    source = source_of(TEXT)
    assert [source.code(each) for each in source.calls_named("later", "step")] == [
        "step(np.mean(1))",
        "step(2)",
        "later()",
    ]
    assert [source.code(each) for each in source.attributes_named("step", "mean")] == ["np.mean", "self.step"]
    assert [each.name.value for each in source.functions_named("train", "later", "later")] == ["later", "train"]
    assert [each.name.value for each in source.classes_named("Trainer", "train")] == ["Trainer"]


def test_calls_are_found_by_what_imports_make_of_their_names() -> None:
    source = source_of(TEXT)
    assert source.imported_as("DistributedDataParallel") == {"Wrapped"}
    assert [source.code(each) for each in source.calls_below("torch.optim.")] == ["optim.Adam([])"]
    assert [source.code(each) for each in source.calls_of("torch.nn.parallel.DistributedDataParallel")] == [
        "Wrapped(model)"
    ]


def test_a_file_without_the_names_is_not_parsed() -> None:
    source = source_of(TEXT + "# is not parsed\n")
    assert not source.calls_named("train", "Trainer")
    assert not source.attributes_named("train")
    assert not source.functions_named("step")
    assert not source.classes_named("later")
    assert not source.calls_below("torch.utils.")
    assert not list(source.named("is"))
    assert "module" not in vars(source)


def test_a_name_of_other_characters_may_be_written_otherwise() -> None:
    source = source_of("\u00b5 = print\n\u00b5(1)\n")  # Python's parser makes the Greek letter of the micro sign
    assert len(source.calls_named("\u00b5")) == 1


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("import re\nP = re.compile('torch.compile')  # compile\n", False),
        ("import re\nP = re.compile('x')\nmodel.compile()\n", True),
        ("from torch import compile as made\nmodel = made(model)\n", True),
        ("import torch\n@torch.compile\ndef f(x):\n    return x\n", True),
    ],
)
def test_a_file_that_compiles_expressions_alone_is_not_parsed(text: str, parsed: bool) -> None:
    assert bool(compilations({"train.py": text})) is parsed
    assert ("module" in vars(source_of(text))) is parsed
