"""What else may happen where a model calls a layer than the layer's own forward pass."""

from __future__ import annotations

import pytest

from diagnose.source.rewrite.adapted_layers import adaptation

MODEL = """import torch
from torch import nn
import torch.nn.utils.prune as prune


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 5)


def swapped(model, name, layer):
    setattr(model, name, layer)


model = Net()
"""


@pytest.mark.parametrize(
    "line",
    [
        "model.head.register_forward_hook(watch)",
        "model.head = nn.Sequential(nn.Dropout(0.1), model.head)",
        "adapted = Lora(model.head)\nmodel.head = adapted",
        "model.head.forward = lambda x: x",
        "nn.utils.parametrizations.weight_norm(model.head)",
        "prune.l1_unstructured(model.head, 'weight', 0.5)",
        "setattr(model, name, Lora(child))",
        "swapped(model, 'head', Lora(model.head))",
        "model._modules['head'] = Lora(model.head)",
        "class Wide(Net):\n    def __init__(self):\n        super().__init__()\n        self.head = Lora(self.head)",
    ],
)
def test_hooks_and_other_layers_are_seen(line: str) -> None:
    assert adaptation({"train.py": MODEL + line + "\n"}, "head", {"torch.nn.Linear"}) is not None


@pytest.mark.parametrize(
    "line",
    [
        "model.head = nn.Linear(8, 7)",
        "model.head.weight = model.embedding.weight",
        "nn.init.zeros_(model.head.weight)",
        "setattr(args, key, value)",
        "import pathlib\nargs.head = pathlib.Path(args.head)",
        "optimizer = torch.optim.SGD(model.head.parameters(), 0.1)",
        "print('weight_norm(', 'register_forward_hook')",
        "class Other(nn.Module):\n    def __init__(self):\n        self.head = Mlp()",
    ],
)
def test_what_leaves_the_layer_as_it_is_does_not_count(line: str) -> None:
    assert adaptation({"train.py": MODEL + line + "\n"}, "head", {"torch.nn.Linear"}) is None
