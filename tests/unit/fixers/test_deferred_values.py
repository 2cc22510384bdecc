"""Sums and lists that wait on the device: where they can, and where their names stand for something else."""

from __future__ import annotations

import pytest
from deferring import fixed
from program_outcome import outcome

from diagnose.fixer import Advice, Edits

MEANS = """\
import numpy as np
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    losses = []
    for i in range(5):
        loss = model(torch.ones(1, 2)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    losses = np.average(losses)
    print(epoch, round(losses, 4), losses)
"""


def test_a_list_is_followed_to_where_its_name_is_given_to_its_mean() -> None:
    answer = fixed(MEANS)
    assert isinstance(answer, Edits)
    assert "losses = np.average([value.item() for value in losses])" in answer.files["train.py"]
    assert outcome(answer.files["train.py"]) == outcome(MEANS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    losses = np.average(losses)\n", "    if epoch:\n        losses = np.average(losses)\n"),
        ("    losses = []\n", "    if epoch != 1:\n        losses = []\n"),
        ("losses = np.average(losses)", "losses = loss.item()"),
    ],
)
def test_a_list_whose_name_may_stand_for_another_value_is_left_alone(old: str, new: str) -> None:
    answer = fixed(MEANS.replace(old, new))
    assert isinstance(answer, Advice)
    assert "does not only grow" in answer.text


VALIDATED = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{start}
for i in range(5):
    loss = model(torch.ones(1, 2) * i).square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    {fill}
print({show})
{again}
for i in range(2):
    loss = model(torch.zeros(1, 2)).square().sum()
    {fill}
print({show})
"""


@pytest.mark.parametrize("again", ["{start}", "pass"])
@pytest.mark.parametrize(
    ("start", "fill", "show"),
    [
        ("seen, losses = 0, []", "losses.append(loss.item())", "losses, sum(losses)"),
        ("seen, hits = 0, 0", "hits += (loss > 0.5).sum().item()", "hits, hits / 7"),
        ("total = 0.0", "total += loss.item()", "total, total / 7"),
    ],
)
def test_what_two_loops_fill_is_a_number_after_either(start: str, fill: str, show: str, again: str) -> None:
    text = VALIDATED.format(start=start, fill=fill, show=show, again=again.format(start=start))
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert outcome(answer.files["train.py"]) == outcome(text)


@pytest.mark.parametrize("device", ["'mps'", "torch.accelerator.current_accelerator()"])
def test_a_sum_is_no_float64_tensor_where_the_program_may_run_on_a_device_without(device: str) -> None:
    text = (
        f"import torch\ndevice = {device}\ntotal = 0.0\nfor x in rows:\n    loss = model(x).mean()\n"
        "    loss.backward()\n    opt.step()\n    total += loss.item()\nprint(total)\n"
    )
    plain = fixed(text.replace(device, "'cuda'"))
    assert isinstance(plain, Edits) and "total += loss.detach().double()" in plain.files["train.py"]
    answer = fixed(text)
    assert isinstance(answer, Edits) and "double" not in answer.files["train.py"]
