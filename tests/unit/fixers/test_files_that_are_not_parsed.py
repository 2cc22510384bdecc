"""Fixers parse no file whole that cannot hold what they look for, however alike its words are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rewriting import FIXERS

from diagnose.fixer import example_request
from diagnose.source.tree.syntax import parse

TRAIN = """import torch
from torch import nn
from library import interface

model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in interface(9):
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LIBRARY = '''"""The interface of a library, whose performance is no matter; what it keeps is backward compatible."""
import torch
from .own import checkpoint


@torch.no_grad()
def interface(turns, scale=2 * 3):
    rows = []
    for turn in range(turns):
        rows.append(checkpoint(torch.ones, 4) * scale)
    return rows  # {fixer}
'''


LAYERS = '''"""Layers, with a grad, a mean(x), a sqrt, `.item()`, `.cuda`, DistributedDataParallel and backward."""
import re
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

PATTERN = re.compile("optim|backward|DistributedDataParallel")


class Layers(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in layers])
        self.heads = [layer.weight for layer in layers]

    def forward(self, x):
        for layer in self.layers:
            nn.init.zeros_(layer.weight)
        x = x.mean(dim=1, keepdim=True) * torch.sigmoid(x.sqrt())
        return x.to(torch.float32)  # {fixer}
'''


@pytest.mark.parametrize(
    "fixer",
    [
        *("defer-item", "keep-on-device", "native-gelu"),
        *("native-norm", "nonblocking-copies", "pad-vocabulary", "state-on-device", "use-ddp", "zero-grad-none"),
    ],
)
def test_a_file_of_layers_is_not_parsed_for_what_they_have_not(fixer: str) -> None:
    layers = LAYERS.replace("{fixer}", fixer[:3])  # a text of its own: sources are kept by their texts
    request = example_request("asked", TRAIN.replace("from library import interface", "from layers import Layers"))
    sources = {**request.sources, "layers.py": layers}
    for setting in FIXERS[fixer].settings(replace(request, sources=sources)):
        FIXERS[fixer].rewrite(replace(request, sources=sources, setting=setting))
    source = parse(layers)
    assert source is not None
    assert "module" not in vars(source)


@pytest.mark.parametrize(
    ("fixer", "rule"),
    [
        ("checkpoint-fewer", "recompute"),
        ("drop-broadcast", "redundant-comm"),
        ("foreach-clip", "launch-bound"),
        ("native-gelu", "unfused-pointwise"),
    ],
)
def test_a_file_with_similar_words_is_not_parsed(fixer: str, rule: str) -> None:
    library = LIBRARY.replace("{fixer}", fixer)
    request = example_request(rule, TRAIN)
    sources = {**request.sources, "library.py": library}
    for setting in FIXERS[fixer].settings(replace(request, sources=sources)):
        FIXERS[fixer].rewrite(replace(request, sources=sources, setting=setting))
    source = parse(library)
    assert source is not None
    assert "module" not in vars(source)
