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


@pytest.mark.parametrize(
    ("fixer", "rule"),
    [
        ("checkpoint-fewer", "recompute"),
        ("drop-broadcast", "redundant-comm"),
        ("foreach-average", "launch-bound"),
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
