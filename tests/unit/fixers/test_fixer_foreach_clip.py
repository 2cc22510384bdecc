"""Norms of gradients taken at once: the training is the same, and what is logged is too, up to rounding."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from program_outcome import outcome

from diagnose.fixer import Advice, Edits, Gate, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["foreach-clip"]

FLAT = """
import math
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    optimizer.zero_grad()
    (9 * model(torch.randn(5, 6))).square().mean().backward()
    squares = 0.0
    for parameter in model.parameters():
        if parameter.grad is not None:
            squares += parameter.grad.norm().item() ** 2
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 2 == 0:
        print(f"gradient norm {math.sqrt(squares):.3f}")
"""

FUNCTION = """
import torch


def clip(params, max_norm=1.0):
    total_norm = 0
    for p in params:
        if p.grad is None:
            continue
        param_norm = p.grad.detach().data.norm(2)
        total_norm += param_norm.item() ** 2
    total_norm = total_norm ** 0.5
    clip_coef = min(max_norm / (total_norm + 1e-6), 1.0)
    for p in params:
        if p.grad is not None:
            p.grad.data.mul_(clip_coef)
    return total_norm


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(6):
    optimizer.zero_grad()
    (9 * model(torch.randn(5, 6))).square().mean().backward()
    norm = clip(list(model.parameters()))
    assert isinstance(norm, float)
    print(f"{norm:.3f}")
    optimizer.step()
"""

METHOD = """
import torch


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(6, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.norms = []

    def fit(self):
        for step in range(6):
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 6)).square().mean().backward()
            total = 0.
            for p in self.model.parameters():
                total += (p.grad ** 2).sum().item()
            norm = total ** (1. / 2)
            self.norms.append(norm)
            self.optimizer.step()


trainer = Trainer()
trainer.fit()
model = trainer.model
print(" ".join(f"{norm:.3f}" for norm in trainer.norms))
"""


@pytest.mark.parametrize(
    ("text", "clips"),
    [(FLAT, False), (FUNCTION, True), (METHOD, False)],
    ids=["flat", "function", "method"],
)
def test_the_training_is_the_same_and_so_is_the_log(text: str, clips: bool) -> None:
    answer = FIXER.rewrite(example_request("host-sync", text))
    assert isinstance(answer, Edits)
    assert (answer.gate or FIXER.gate) is Gate.ROUNDING
    after = answer.files["train.py"]
    assert not re.search(r"for p\w* in .*:\n", after)
    before, now = outcome(text), outcome(after)
    assert before[0] == now[0]
    assert before[1] == (pytest.approx(now[1], rel=1e-5, abs=1e-6) if clips else now[1])


def test_nothing_is_read_in_a_step_that_is_not_logged() -> None:
    answer = FIXER.rewrite(example_request("host-sync", FLAT))
    assert isinstance(answer, Edits)
    assert "    squares = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) ** 2\n" in answer.files["train.py"]
    assert ".item()" not in answer.files["train.py"]


@pytest.mark.parametrize(
    "clipping",
    [
        "    if squares > 1:\n        for p in model.parameters():\n            p.grad.mul_(1 / squares)\n",
        "    for p in model.parameters():\n        p.grad /= squares ** 0.5\n",
    ],
)
def test_another_way_to_clip_is_left_to_people(clipping: str) -> None:
    text = FLAT.replace("    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", clipping)
    answer = FIXER.rewrite(example_request("host-sync", text))
    assert isinstance(answer, Advice)
    assert "train.py:10" in answer.text


@pytest.mark.parametrize(
    ("given", "edited"),
    [
        ("list(model.parameters())", True),
        ("[p for p in model.parameters() if p.requires_grad]", True),
        ("model.parameters()", False),
        ("filter(lambda p: p.requires_grad, model.parameters())", False),
        ("(p for p in model.parameters())", False),
    ],
)
def test_parameters_that_are_gone_through_once_stay_unclipped(given: str, edited: bool) -> None:
    text = FUNCTION.replace("def clip(params, max_norm=1.0):\n", f"def clip(max_norm=1.0):\n    params = {given}\n")
    assert isinstance(FIXER.rewrite(example_request("host-sync", text)), Edits) is edited


GIVEN = """from clipping import clip
{params}
for x in loader:
    model(x).sum().backward()
    {clip}
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("params", "clip", "edited"),
    [
        ("", "clip(model.parameters())", False),
        ("", "clip(max_norm=2.0, params=filter(None, model.parameters()))", False),
        ("", "clip(list(model.parameters()))", True),
        ("params = list(model.parameters())", "clip(params)", True),
        ("params = model.parameters()", "clip(params)", False),
    ],
)
def test_parameters_that_another_file_passes_to_be_gone_through_once_stay_unclipped(
    params: str, clip: str, edited: bool
) -> None:
    text = GIVEN.format(params=params, clip=clip)
    clipping = FUNCTION.partition("\n\ntorch.manual_seed")[0]
    request = replace(example_request("host-sync", text), sources={"train.py": text, "clipping.py": clipping})
    assert isinstance(FIXER.rewrite(request), Edits) is edited


@pytest.mark.parametrize("given", ["list(model.parameters())", "model.parameters()"])
def test_parameters_that_each_step_would_go_through_again_stay_unclipped(given: str) -> None:
    text = FLAT.replace("for step in", f"params = {given}\nfor step in").replace("in model.parameters()", "in params")
    text = text.replace("clip_grad_norm_(model.parameters(), ", "clip_grad_norm_(params, ")
    assert isinstance(FIXER.rewrite(example_request("host-sync", text)), Edits) is given.startswith("list")


KEPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(3):
    optimizer.zero_grad()
    loss = (9 * model(torch.randn(5, 6))).square().mean()
    (loss * float("nan") if step == {broken} else loss).backward()
    model[0].weight.grad.fill_(0.5)
    norm = 0.0
    for p in model.parameters():
        norm += p.grad.norm().item() ** 2
    norm = norm ** 0.5
    {clipping}
    optimizer.step()
"""
IF_LESS = """factor = 1.0 / (norm + 1e-6)
    if factor < 1:
        for p in model.parameters():
            p.grad.mul_(factor)"""
ONE_FIRST = """factor = min(1.0, 1.0 / (norm + 1e-6))
    for p in model.parameters():
        p.grad.mul_(factor)"""
ONE_LAST = ONE_FIRST.replace("min(1.0, 1.0 / (norm + 1e-6))", "min(1.0 / (norm + 1e-6), 1.0)")


@pytest.mark.parametrize("clipping", [IF_LESS, ONE_FIRST, ONE_LAST])
@pytest.mark.parametrize("broken", [-1, 1])
def test_gradients_that_are_not_finite_stay_as_the_clipping_leaves_them(clipping: str, broken: int) -> None:
    text = KEPT.format(clipping=clipping, broken=broken)
    answer = FIXER.rewrite(example_request("host-sync", text))
    assert isinstance(answer, Edits)
    assert outcome(answer.files["train.py"])[1] == pytest.approx(outcome(text)[1], rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("start", ["0.0", "torch.zeros(())", "torch.tensor(0.0)", "torch.zeros(1)"])
@pytest.mark.parametrize("log", ["print(norm)", "print(norm.item())", "print(f'{norm:.3f}')", "seen = [norm]"])
def test_a_norm_that_is_a_tensor_stays_one(start: str, log: str) -> None:
    text = KEPT.replace("norm = 0.0", f"squares = {start}").replace(
        "norm += p.grad.norm().item()", "squares += p.grad.norm()"
    )
    text = text.replace("norm = norm ** 0.5", "norm = squares ** 0.5").format(clipping=log, broken=-1)
    answer = FIXER.rewrite(example_request("host-sync", text))
    assert isinstance(answer, Edits) is (start != "torch.zeros(1)")
    if isinstance(answer, Edits):
        assert outcome(answer.files["train.py"])[0] == outcome(text)[0]


def test_a_norm_that_is_differentiated_keeps_its_graph() -> None:
    text = KEPT.replace("norm += p.grad.norm().item()", "norm += p.grad.norm()").format(clipping="pass", broken=-1)
    assert isinstance(FIXER.rewrite(example_request("host-sync", text)), Edits)
    differentiated = text.replace(".backward()", ".backward(create_graph=True)")
    assert isinstance(FIXER.rewrite(example_request("host-sync", differentiated)), Advice)


SUMMED = """
import math
import torch


def gradient_norm(model):
    return {norm}


model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
model[1].bias.requires_grad_(False)
for _ in range(2):
    model(torch.randn(5, 3)).square().mean().backward()
    print(f"{{gradient_norm(model):.3f}}")
"""
GRADIENTS = "for p in model.parameters() if p.grad is not None"


@pytest.mark.parametrize(
    "norm",
    [
        f"sum(p.grad.norm().item() ** 2 {GRADIENTS}) ** 0.5",
        f"math.sqrt(sum([p.grad.detach().pow(2).sum() {GRADIENTS}]))",
        f"1 - sum(p.grad.norm(2).item() ** 2 {GRADIENTS})",
    ],
)
def test_norms_that_an_expression_adds_up_are_taken_at_once(norm: str) -> None:
    text = SUMMED.format(norm=norm)
    answer = FIXER.rewrite(example_request("host-sync", text))
    assert isinstance(answer, Edits)
    assert f"torch.nn.utils.get_total_norm([p.grad {GRADIENTS}]).item()" in answer.files["train.py"]
    assert outcome(answer.files["train.py"]) == outcome(text)


@pytest.mark.parametrize(
    "norm",
    [
        f"sum(p.grad.norm(1).item() ** 2 {GRADIENTS})",
        f"sum(p.grad.norm() ** 2 {GRADIENTS})",
        f"sum(p.grad.norm().item() ** 2 {GRADIENTS} and p.dim() > 1)",
        f"sum((p.grad.norm().item() ** 2 {GRADIENTS}), 1e-12)",
        "np.sqrt(sum(p.grad.norm().item() for p in model.parameters()))",
    ],
)
def test_sums_of_another_kind_are_left_as_they_are(norm: str) -> None:
    assert not isinstance(FIXER.rewrite(example_request("host-sync", SUMMED.format(norm=norm))), Edits)
