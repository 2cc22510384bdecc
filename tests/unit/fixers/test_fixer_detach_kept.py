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


@pytest.mark.parametrize(
    ("loss", "edited"),
    [("(out - target(x).detach()).mean()", True), ("(out - target(x)).mean().detach()", False)],
)
def test_only_a_value_that_is_detached_itself_has_no_graph(loss: str, edited: bool) -> None:
    text = HEAD + (
        f"kept = []\nfor x in batches:\n    out = model(x)\n    loss = {loss}\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n    kept.append(loss)\nprint(float(sum(kept)))\n"
    )
    answer = FIXER.rewrite(example_request("leaking-memory", text))
    assert isinstance(answer, Edits) is edited
    assert not isinstance(answer, Edits) or "kept.append(loss.detach())" in answer.files["train.py"]


COLLECT = (
    HEAD
    + f"""
def train():
    kept, total = [], 0.0
    for step in range(5):
        {STEP}
        optimizer.step()
        kept.append(loss)
    {{after}}

{{caller}}
"""
)


@pytest.mark.parametrize(
    ("read", "edited"),
    [
        ("print(f'{float(sum(kept)):.3f}')", True),
        ("print(kept)", False),
        ("print(kept[0].requires_grad)", False),
        ("sum(kept).backward()", False),
    ],
)
def test_a_list_of_the_file_is_read_where_no_function_binds_it(read: str, edited: bool) -> None:
    text = HEAD + (
        f"kept = []\n\ndef train():\n    for step in range(5):\n        {STEP}\n        optimizer.step()\n"
        f"        kept.append(loss)\n\ntrain()\n{read}\n"
    )
    assert isinstance(FIXER.rewrite(example_request("leaking-memory", text)), Edits) is edited


@pytest.mark.parametrize(
    ("after", "caller", "edited"),
    [
        ("print(f'{sum(kept) / 5:.3f}')", "train()", True),
        ("print('%.3f' % (sum(kept) / 5))", "train()", True),
        ("print('{:.3f}'.format(kept[-1]))", "train()", True),
        ("return torch.stack(kept).mean()", "print(train().item())", True),
        ("return sum(kept) / 5", "result = train()\nprint(f'{result:.3f}')", True),
        ("return kept, 1", "kept, one = train()\nprint([float(each) for each in kept])", True),
        ("for each in kept:\n        print(each.item())", "train()", True),
        ("print(kept)", "train()", False),
        ("print(kept[-1])", "train()", False),
        ("print(f'{kept}')", "train()", False),
        ("print('%s' % kept[-1])", "train()", False),
        ("last = kept[-1]\n    last.backward()", "train()", False),
        ("torch.autograd.grad(kept[-1], model[0].weight)", "train()", False),
        ("for each in kept:\n        print(each)", "train()", False),
        ("torch.save(kept, 'kept.pt')", "train()", False),
        ("print(kept[-1].requires_grad)", "train()", False),
        ("return sum(kept)", "print(train())", False),
        ("return sum(kept)", "result = train()\nresult.backward()", False),
        ("return kept, 1", "kept, one = train()\nprint(kept)", False),
    ],
)
def test_a_tensor_that_is_shown_or_differentiated_keeps_its_graph(after: str, caller: str, edited: bool) -> None:
    text = COLLECT.format(after=after, caller=caller)
    assert isinstance(FIXER.rewrite(example_request("leaking-memory", text)), Edits) is edited
