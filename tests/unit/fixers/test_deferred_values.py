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


CHOSEN = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
decay, value = 0.9, {start}
for epoch in range(3):
    for i in range(5):
        loss = model(torch.ones(1, 2)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = {chosen}
        if i % 3 == 0:
            print(i, value)
    print(epoch, value)
"""


@pytest.mark.parametrize(
    ("start", "chosen"),
    [
        ("None", "loss.item() if value is None else decay * value + (1 - decay) * loss.item()"),
        ("0.0", "max(value, round(loss.item(), 2))"),
        ("1e9", "min(loss.item() * 0.5, value)"),
    ],
)
def test_a_value_that_is_chosen_from_itself_and_a_read_one_waits_for_whoever_looks_at_it(
    start: str, chosen: str
) -> None:
    text = CHOSEN.format(start=start, chosen=chosen).replace("decay, value = 0.9, ", "decay = 0.9\nvalue = ")
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert answer.files["train.py"].count("loss.detach().clone()") == 1
    assert outcome(answer.files["train.py"]) == outcome(text)


def test_what_a_put_off_statement_needs_twice_is_kept_once_and_it_runs_on_one_line() -> None:
    mean = "value * i / (i + 1) + (\n            loss.item() / (i + 1)\n        )"
    text = CHOSEN.format(start="0.0", chosen=mean).replace("decay, value = 0.9, ", "value = ")
    answer = fixed(text)
    assert isinstance(answer, Edits)
    edited = answer.files["train.py"]
    assert outcome(edited) == outcome(text)
    assert "append((loss.detach().clone(), i, (i + 1)))" in edited
    assert "    value = value * i_then / argument + (tensor.item() / argument)\n" in edited


@pytest.mark.parametrize("anew", [False, True])
def test_what_waits_at_the_end_of_an_epoch_is_not_lost_to_the_next(anew: bool) -> None:
    text = CHOSEN.format(start="9.0", chosen="min(value, loss.item())").replace("decay, value = 0.9, ", "value = ")
    text = text.replace("    print(epoch, value)\n", "")
    if anew:
        text = text.replace("    for i in", "    value = 9.0\n    for i in")
    answer = fixed(text)
    assert isinstance(answer, Edits)
    edited = answer.files["train.py"]
    assert outcome(edited) == outcome(text)
    assert edited.count("value_pending.clear()") == (1 if anew else 2)  # no more runs than somebody looks at


@pytest.mark.parametrize(
    "chosen",
    [
        "loss.item() if i == 0 else value + (1 / i) * loss.item()",
        "loss.item() if value is None else note(rates) * value + loss.item()",
        "loss.item() if i == 0 else before * loss.item(); before = i",
    ],
)
def test_a_value_is_left_alone_whose_choice_decides_what_is_computed_at_all(chosen: str) -> None:
    text = CHOSEN.format(start="None", chosen=chosen.replace("; ", "\n        "))
    assert isinstance(fixed(text.replace("decay, value = 0.9, ", "value = ")), Advice)


@pytest.mark.parametrize("chosen", ["max([value, loss.item()])", "note(value, loss.item())"])
def test_a_value_is_left_alone_that_a_call_of_anything_else_chooses(chosen: str) -> None:
    text = CHOSEN.format(start="0.0", chosen=chosen).replace("decay, value = 0.9, ", "value = ")
    assert isinstance(fixed("note = max\n" + text), Advice)


HISTORY = """\
import json
import torch

class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 2)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.history = []

    def epoch(self):
        for i in range(5):
            loss = self.model(torch.ones(1, 2)).square().sum()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.history.append(loss.item())
        print(self.history[-1], sum(self.history[-2:]), len(self.history))

    def report(self):
        return json.dumps(self.history)

trainer = Trainer()
model = trainer.model
for _ in range(2):
    trainer.epoch()
print(trainer.report())
"""


def test_a_list_of_an_object_is_followed_through_its_class() -> None:
    answer = fixed(HISTORY)
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert "self.history.append(loss.detach().clone())" in text
    assert "json.dumps([value.item() for value in self.history])" in text
    assert outcome(text) == outcome(HISTORY)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("json.dumps(self.history)", "self.history", "may be kept and grow further"),
        ("print(trainer.report())", "print(trainer.history)", "is used from outside of its class"),
        ("self.history = []", "self.history = torch.load('history.pt')", "gets a value from elsewhere"),
    ],
)
def test_a_list_of_an_object_that_others_may_see_is_left_alone(old: str, new: str, why: str) -> None:
    answer = fixed(HISTORY.replace(old, new))
    assert isinstance(answer, Advice)
    assert why in answer.text


@pytest.mark.parametrize("used", ["[f'{i} {v}' for i, v in enumerate(self.history)]", "list(self.history)"])
def test_a_list_of_an_object_is_read_where_it_is_gone_through_or_copied(used: str) -> None:
    text = HISTORY.replace("json.dumps(self.history)", used)
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert outcome(answer.files["train.py"]) == outcome(text)
