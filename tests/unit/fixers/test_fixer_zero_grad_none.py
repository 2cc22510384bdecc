"""Gradients that are freed and not filled: the training stays the same bit for bit."""

from __future__ import annotations

import pytest

from diagnose.fixer import Advice, Edits, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["zero-grad-none"]

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
weights = list(model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
freed = []
for step in range(5):
{reset}
    freed.append(weights[0].grad is None)
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "reset",
    [
        "    optimizer.zero_grad(set_to_none=False)",
        "    model.zero_grad(False)  # between steps",
        "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad.zero_()",
        "    for w in weights:\n        if w.grad is not None:\n            w.grad.data.zero_()",
        "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad.detach_()\n"
        "            p.grad.zero_()",
    ],
)
def test_the_training_is_the_same_and_the_gradients_are_freed(reset: str) -> None:
    text = PROGRAM.format(reset=reset)
    answer = FIXER.rewrite(example_request("slow-optimizer", text))
    assert isinstance(answer, Edits)
    ends = []
    for each, freed in ((text, [True, False, False, False, False]), (answer.files["train.py"], [True] * 5)):
        names: dict[str, object] = {}
        exec(compile(each, "train.py", "exec", dont_inherit=True), names)
        assert names["freed"] == freed
        model = names["model"]
        assert isinstance(model, torch.nn.Module)
        ends.append([value for parameter in model.parameters() for value in parameter.flatten().tolist()])
    assert ends[0] == ends[1]


def test_a_program_that_counts_on_zeros_is_told_where() -> None:
    text = PROGRAM.format(reset="    optimizer.zero_grad(set_to_none=False)\n    print(weights[0].grad.norm())")
    answer = FIXER.rewrite(example_request("slow-optimizer", text.replace("weights[0].grad is None", "1")))
    assert isinstance(answer, Advice)
    assert "train.py:10" in answer.text
