"""memory-budget on programs that run: the same numbers as far as it promises, and less that is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Gate, Request, Scalar, example_request
from diagnose.plugins import load

FIXER = load().fixers["memory-budget"]

COMPILED = """import torch
from torch import nn

net = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16)) for _ in range(4)])
run = torch.compile(net, backend="aot_eager_decomp_partition")
kept = {}


def keep(tensor):
    kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return tensor


with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
    loss = run(torch.linspace(-1, 1, 64 * 16).reshape(64, 16)).square().mean()
loss.backward()
"""
ACCUMULATES = """import torch
from torch import nn

batch_size = 8
accumulate = 2
net = nn.Linear(4, 1)
data = torch.randn(64, 4)
at = 0


def get_batch(size):
    global at
    at += size
    return data[at - size : at]


for step in range(2):
    for micro_step in range(accumulate):
        x = get_batch(batch_size)
        loss = net(x).square().mean() / accumulate
        loss.backward()
"""
OPTIMIZER = """
    optimizer.step()
    optimizer.zero_grad()
"""
LOADER = """import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(1)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(torch.randn(64, 4), batch_size=8)
accumulate = 4
for i, x in enumerate(loader):
    loss = net(x).square().mean()
    (loss / accumulate).backward()
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
STEPS = (
    ACCUMULATES.replace("data = torch", "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\ndata = torch")
    + OPTIMIZER
)


def request(text: str, **setting: Scalar) -> Request:
    return example_request("memory-pressure", text, setting=setting)


def ran(text: str) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(text, "train.py", "exec"), names)
    return names


def test_a_compiled_program_keeps_less_and_computes_the_same() -> None:
    answer = FIXER.rewrite(request(COMPILED, budget=0.3))
    assert isinstance(answer, Edits)
    before = ran(COMPILED)
    try:
        after = ran(answer.files["train.py"])
    finally:
        torch._functorch.config.activation_memory_budget = 1.0
    assert sum(after["kept"].values()) < sum(before["kept"].values())
    for one, other in zip(before["net"].parameters(), after["net"].parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_every_budget_is_tried_since_what_is_held_does_not_fall_with_it() -> None:
    budgets = [float(str(setting["budget"])) for setting in FIXER.settings(request(COMPILED))]
    assert budgets == sorted(budgets, reverse=True)
    assert len(budgets) > 3


@pytest.mark.parametrize(("program", "gate"), [(STEPS, Gate.ROUNDING), (LOADER, Gate.TRAINING)])
def test_smaller_micro_batches_make_up_the_same_step(program: str, gate: Gate) -> None:
    assert [setting["micro_batch"] for setting in FIXER.settings(request(program))] == [4, 2, 1]
    answer = FIXER.rewrite(request(program, micro_batch=2))
    assert isinstance(answer, Edits)
    assert answer.gate is gate
    before, after = ran(program), ran(answer.files["train.py"])
    for one, other in zip(before["net"].parameters(), after["net"].parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_loop_of_one_micro_step_can_have_more() -> None:
    program = STEPS.replace("accumulate = 2", "accumulate = 1")
    answer = FIXER.rewrite(request(program, micro_batch=4))
    assert isinstance(answer, Edits)
    assert "batch_size = 4\naccumulate = 2\n" in answer.files["train.py"]


def test_a_program_that_neither_compiles_nor_accumulates_is_left_with_advice() -> None:
    answer = FIXER.rewrite(request("import torch\nloss = net(x)\nloss.backward()\noptimizer.step()\n"))
    assert isinstance(answer, Advice)
    assert "accumulate the gradients" in answer.text


def test_a_budget_of_the_programs_own_stays() -> None:
    program = COMPILED.replace("kept = {}", "torch._functorch.config.activation_memory_budget = 0.9\nkept = {}")
    assert FIXER.rewrite(request(program, budget=0.5)) is None
