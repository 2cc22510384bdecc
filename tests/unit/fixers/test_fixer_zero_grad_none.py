"""Gradients that are freed and not filled: the training stays the same bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Edits, Gate, example_request
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
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
"""
FORWARD = "    model(torch"
ASKED = "    freed.append(weights[0].grad is None)\n"
"""What a test asks before the forward pass; a program that asks so itself is left alone."""


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
        exec(compile(each.replace(FORWARD, ASKED + FORWARD), "train.py", "exec", dont_inherit=True), names)
        assert names["freed"] == freed
        model = names["model"]
        assert isinstance(model, torch.nn.Module)
        ends.append([value for parameter in model.parameters() for value in parameter.flatten().tolist()])
    assert ends[0] == ends[1]


def test_a_program_that_counts_on_zeros_is_told_where() -> None:
    text = PROGRAM.format(reset="    optimizer.zero_grad(set_to_none=False)\n    print(weights[0].grad.norm())")
    answer = FIXER.rewrite(example_request("slow-optimizer", text))
    assert isinstance(answer, Advice)
    assert "train.py:10" in answer.text


MASKED = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, extra=None):
        if extra is not None:
            return self.a(x) + self.b(extra)
        return self.a(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x, extra=None):
        for block in self.blocks:
            x = block(x, extra)
        return x

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for x, other in loader:
    loss = {call}.mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "gate"),
    [
        ("model(x, other)", None),
        ("model(x, extra=other)", None),
        ("model(x, torch.ones(4))", None),
        ("model(x)", None),
        ("model(x, None)", None),
        ("(model(x) + model(x, other))", Gate.TRAINING),
        ("model(x, other if len(x) > 4 else None)", Gate.TRAINING),
        ("model(x, info.get('extra'))", Gate.TRAINING),
        ("model(*parts)", Gate.TRAINING),
    ],
)
def test_a_branch_on_none_is_settled_by_what_all_calls_give(call: str, gate: Gate | None) -> None:
    answer = FIXER.rewrite(example_request("slow-optimizer", MASKED.format(call=call)))
    assert isinstance(answer, Edits)
    assert answer.gate is gate


TWO_HEADS = """
import torch
from torch import nn
{above}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x)), self.aux(self.body(x))

model = Net()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(9):
    weights = (1.0, 0.3 if epoch < 5 else 0.0)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        out, aux = model(x)
        first, second = criterion(out, y), criterion(aux, y)
        {loss}
        loss.backward()
        optimizer.step()
        if epoch > 3:
            seen = loss.item()
"""
OF_BOTH = "def of_both(out, aux, y, epoch):\n    loss = nn.functional.cross_entropy(out, y)\n"
LATER = "    if epoch < 5:\n        loss = loss + nn.functional.cross_entropy(aux, y)\n    return loss\n"
EARLY = "    if epoch > 5:\n        return loss\n    return loss + nn.functional.cross_entropy(aux, y)\n"
INSTANCE = (
    "class Both:\n    def __call__(self, out, aux, y, epoch):\n        return out if epoch else aux\nof_both = Both()\n"
)


@pytest.mark.parametrize(
    ("loss", "above", "gate"),
    [
        ("loss = first + 0.3 * second", "", None),
        ("loss = sum(w * one for w, one in zip(weights, (first, second)))", "", None),
        ("loss = of_both(out, aux, y, epoch)", f"{OF_BOTH}    return loss + aux.mean()\n", None),
        ("loss = criterion(out if epoch < 5 else aux, y)", "", Gate.TRAINING),
        ("loss = first\n        if epoch < 5:\n            loss = loss + second", "", Gate.TRAINING),
        ("loss = first\n        if epoch < 5:\n            loss += second", "", Gate.TRAINING),
        (
            "parts = [first]\n        if epoch < 5:\n            parts.append(second)\n        loss = sum(parts)",
            "",
            Gate.TRAINING,
        ),
        ("loss = sum(one for w, one in zip(weights, (first, second)) if w)", "", Gate.TRAINING),
        ("n = 1 + (epoch < 5)\n        loss = sum((first, second)[:n])", "", Gate.TRAINING),
        (
            "n = 1 + (epoch < 5)\n        loss = 0\n        for one in (first, second)[:n]:\n            loss += one",
            "",
            Gate.TRAINING,
        ),
        ("loss = of_both(out, aux, y, epoch)", OF_BOTH + LATER, Gate.TRAINING),
        ("loss = of_both(out, aux, y, epoch)", OF_BOTH + EARLY, Gate.TRAINING),
        ("loss = of_both(out, aux, y, epoch).mean()", INSTANCE, Gate.TRAINING),
    ],
)
def test_a_loss_that_may_be_of_other_parts_later_leaves_gradients_over(
    loss: str, above: str, gate: Gate | None
) -> None:
    answer = FIXER.rewrite(example_request("slow-optimizer", TWO_HEADS.format(loss=loss, above=above)))
    assert isinstance(answer, Edits)
    assert answer.gate is gate


def test_a_batch_that_is_chosen_leaves_no_gradient_over() -> None:
    text = TWO_HEADS.replace("for x, y in loader:", "for _ in range(9):\n        x, y = batch_of('train')")
    above = "def batch_of(split):\n    data = train if split == 'train' else other\n    return next(data)\n"
    answer = FIXER.rewrite(example_request("slow-optimizer", text.format(loss="loss = first + second", above=above)))
    assert isinstance(answer, Edits)
    assert answer.gate is None


@pytest.mark.parametrize(
    ("forward", "later", "gate"),
    [
        ("return self.last(self.first(x) if self.wide else x)", "print(step)", None),
        ("return self.last(self.first(x) if self.wide else x)", "net.wide = step < 9", Gate.TRAINING),
        ("return self.way(self.first(x))", "net.way = net.first", Gate.TRAINING),
        ("with torch.set_grad_enabled(self.wide):\n            return self.first(x)", "pass", Gate.TRAINING),
    ],
)
def test_a_switch_of_the_model_that_another_file_sets_leaves_gradients_over(
    forward: str, later: str, gate: Gate | None
) -> None:
    model = (
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.wide = True\n        self.first = nn.Linear(4, 4)\n"
        f"        self.last = self.way = nn.Linear(4, 4)\n\n    def forward(self, x):\n        {forward}\n"
    )
    text = (
        "import torch\nfrom net import Net\nmodel = net = Net()\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "for step in range(20):\n    optimizer.zero_grad(set_to_none=False)\n    loss = model(x).mean()\n"
        f"    loss.backward()\n    optimizer.step()\n    {later}\n"
    )
    request = replace(example_request("slow-optimizer", text), sources={"train.py": text, "net.py": model})
    answer = FIXER.rewrite(request)
    assert isinstance(answer, Edits)
    assert answer.gate is gate


BRANCHES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, deep):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        {constructor}

    def forward(self, x):
        return {forward}

    def _part(self, x):
        if x.sum() > 0:
            return self.a(x)
        return self.b(x)

model = Net(True)
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    optimizer.zero_grad(set_to_none=False)
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("constructor", "forward", "gate"),
    [
        ("self.c = self._part(torch.ones(4))", "self.a(self.b(x))", None),
        ("self.c = 0", "self._part(x)", Gate.TRAINING),
        ("self.part = self._part if deep else self.a", "self.part(x)", Gate.TRAINING),
        ("self.part = lambda x: self._part(x)", "self.part(x)", Gate.TRAINING),
        ("self.a.register_forward_hook(self._part)", "self.a(self.b(x))", Gate.TRAINING),
    ],
)
def test_a_method_that_only_constructors_call_leaves_no_gradient_over(
    constructor: str, forward: str, gate: Gate | None
) -> None:
    text = BRANCHES.format(constructor=constructor, forward=forward)
    answer = FIXER.rewrite(example_request("slow-optimizer", text))
    assert isinstance(answer, Edits)
    assert answer.gate is gate


GROUPED = """
import torch
a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD({given}, lr=0.1)
for step, x in enumerate(loader):
    loss = (a(x) if step % 3 else b(a(x))).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    {later}
"""
BOTH = "[*a.parameters(), *b.parameters()]"


@pytest.mark.parametrize(
    ("given", "later", "gate"),
    [
        (BOTH, "print(loss)", None),
        (BOTH, "optimizer.param_groups[0]['lr'] *= 0.9", None),
        (BOTH, "optimizer.param_groups[0]['momentum'] = 0.9", Gate.TRAINING),
        (BOTH, "optimizer.param_groups[0].update(weight_decay=0.1)", Gate.TRAINING),
        ("[{'params': a.parameters(), 'weight_decay': 0.1}, {'params': b.parameters()}]", "pass", Gate.TRAINING),
        ("[dict(params=a.parameters()), dict(params=b.parameters(), momentum=0.5)]", "pass", Gate.TRAINING),
    ],
)
def test_groups_of_sgd_may_have_momentum_of_their_own(given: str, later: str, gate: Gate | None) -> None:
    answer = FIXER.rewrite(example_request("slow-optimizer", GROUPED.format(given=given, later=later)))
    assert isinstance(answer, Edits)
    assert answer.gate is gate


LOOKED = """
import torch
a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
for step, x in enumerate(loader):
    loss = (a(x) if step % 3 else b(a(x))).mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    for p in b.parameters():
        {look}
    optimizer.step()
"""
SKIP = "if p.grad is None:\n            continue\n        "


@pytest.mark.parametrize(
    ("look", "gate"),
    [
        ("if p.grad is not None: total += p.grad.norm() ** 2", None),
        ("if p.grad is not None: p.grad.mul_(0.5)", None),
        (SKIP + "norm = p.grad.norm()", None),
        ("if p.grad is not None: norms.append(p.grad.norm())", Gate.TRAINING),
        ("if p.grad is not None: norms[p] = p.grad.norm()", Gate.TRAINING),
        (SKIP + "print(p.grad.norm())", Gate.TRAINING),
        ("print(len([each for each in b.parameters() if each.grad is not None]))", Gate.TRAINING),
    ],
)
def test_a_look_at_which_gradients_there_are_counts_parameters_without_one(look: str, gate: Gate | None) -> None:
    answer = FIXER.rewrite(example_request("slow-optimizer", LOOKED.format(look=look)))
    assert isinstance(answer, Edits)
    assert answer.gate is gate
