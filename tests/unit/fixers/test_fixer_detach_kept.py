"""detach-kept on loops that collect: the same numbers are shown and learned, and no graph is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["detach-kept"]
HEAD = """import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = "out = model(torch.randn(8, 4)); loss = out.square().mean(); optimizer.zero_grad(); loss.backward()"
PROGRAMS = {
    "list": HEAD
    + f"""
kept = []
for step in range(5):
    {STEP}
    optimizer.step()
    kept.append(loss)
    if step % 2 == 0:
        print(kept[-1].item())
shown = torch.stack(kept).tolist()
""",
    "sum": HEAD
    + f"""
def train():
    total = 0.0
    for step in range(5):
        {STEP}
        optimizer.step()
        total += loss
    kept = [total]
    return kept, [total.item() / 5]

kept, shown = train()
""",
    "one number of each": HEAD
    + f"""
kept = []
for step in range(5):
    {STEP}
    optimizer.step()
    kept.append(out)
shown = [outputs[:, 0].float().abs().max().item() for outputs in kept]
""",
}


def results(text: str) -> tuple[list[float], list[float], list[torch.Tensor]]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    weights = [value for parameter in names["model"].parameters() for value in parameter.flatten().tolist()]
    return names["shown"], weights, names["kept"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out_and_no_graph_is_kept(name: str) -> None:
    answer = FIXER.rewrite(example_request("leaking-memory", PROGRAMS[name]))
    assert isinstance(answer, Edits)
    before, after = results(PROGRAMS[name]), results(answer.files["train.py"])
    assert before[:2] == after[:2]
    assert all(tensor.requires_grad for tensor in before[2])
    assert not any(tensor.requires_grad for tensor in after[2])


def test_what_is_learned_from_is_left_alone() -> None:
    text = HEAD + (
        "for step in range(5):\n    parts = []\n    for part in range(2):\n        out = model(torch.randn(8, 4))\n"
        "        parts.append(out)\n    loss = torch.cat(parts).square().mean()\n    loss.backward()\n"
    )
    assert FIXER.rewrite(example_request("leaking-memory", text)) is None
