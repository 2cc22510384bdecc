"""`bigger-microbatch` where the program tells, counts or decides by what a micro-step or a batch is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Edits, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["bigger-microbatch"]


LOADER = """import torch
from torch.utils.data import DataLoader
loader = DataLoader(data, batch_size=8, shuffle=True)
accumulate = 4
total = 0.0
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    (loss / accumulate).backward()
    {each}
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
        {at_step}
{after}
"""


@pytest.mark.parametrize(
    ("each", "at_step", "after", "edited"),
    [
        ("pass", "pass", "", True),
        ("pass", "scheduler.step()", "", True),
        ("pass", "updates += 1", "print(updates)", True),
        ("pass", "print('a step')", "", True),
        ("total += loss.item()", "pass", "print(total / len(loader))", True),
        ("pass", "pass", "loss = evaluate()\nprint(loss)", True),
        ("print(loss.item())", "pass", "", False),
        ("if i % 10 == 0:\n        print(i)", "pass", "", False),
        ("losses.append(loss.item())", "pass", "", False),
        ("writer.add_scalar('loss', loss, i)", "pass", "", False),
        ("seen += 1", "pass", "", False),
        ("total += loss.item()", "pass", "print(total)", False),
        ("warmup.step()", "pass", "", False),
        ("history[i] = loss.item()", "pass", "", False),
        ("pass", "print(loss.item())", "", False),
        ("pass", "history.append(loss.item())", "", False),
        ("pass", "pass", "print(loss.item())", False),
    ],
)
def test_what_a_micro_step_tells_or_counts_keeps_their_number(
    each: str, at_step: str, after: str, edited: bool
) -> None:
    text = LOADER.format(each=each, at_step=at_step, after=after)
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits if edited else Advice), answer
    assert edited or "train.py:" in getattr(answer, "text", "")


@pytest.mark.parametrize(
    ("loss", "edited"),
    [
        ("F.cross_entropy(model(x), y)", True),
        ("(model(x) - y).square().mean()", True),
        ("F.mse_loss(x @ self.weight.t(), y)", True),
        ("F.cross_entropy(model(x) @ model(y).t(), labels)", False),
        ("F.cross_entropy(torch.mm(a, b.T), labels)", False),
        ("F.cross_entropy(model(x), torch.arange(x.size(0)))", False),
        ("F.cross_entropy(torch.einsum('id,jd->ij', a, b), labels)", False),
        ("torch.cdist(model(x), model(y)).mean()", False),
        ("F.cross_entropy(model(x), y, weight=w)", False),
        ("(model(x) * mask).sum() / mask.sum()", False),
        ("F.mse_loss(model(x), y).sqrt()", False),
        ("(model(x) - y).square().sum()", False),
    ],
)
def test_a_loss_over_pairs_of_samples_is_left_alone(loss: str, edited: bool) -> None:
    text = LOADER.format(each="pass", at_step="pass", after="").replace("criterion(model(x), y)", loss)
    text = text.replace("(loss / accumulate).backward()", "loss = loss / accumulate\n    loss.backward()")
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits if edited else Advice), answer


def test_a_loss_over_pairs_is_found_in_a_function_of_another_file() -> None:
    text = LOADER.format(each="pass", at_step="pass", after="")
    other = "def criterion(a, b):\n    return (a @ b.T).logsumexp(1).mean()\n"
    request = example_request("small-batch", text, setting={"factor": 2})
    answer = FIXER.rewrite(replace(request, sources={**request.sources, "losses.py": other}))
    assert isinstance(answer, Advice)
    assert "losses.py:2" in answer.text


NUMBERED = LOADER.replace("batch_size=8", "batch_size=batch_size").replace("accumulate = 4", "accumulate = 4\n{before}")
NUMBERED = NUMBERED.replace("loader = Data", "batch_size = 8\nloader = Data")


@pytest.mark.parametrize(
    ("before", "edited"),
    [
        ("tokens = batch_size * accumulate * 512\nprint(tokens)", True),
        ("hidden = model.init_hidden(batch_size)", True),
        ("options = {'batch_size': batch_size}\nother = DataLoader(held_out, **options)", True),
        ("scheduler = OneCycleLR(optimizer, 0.1, total_steps=9 * len(loader))", False),
        ("scheduler = OneCycleLR(optimizer, 0.1, epochs=9, steps_per_epoch=len(loader))", False),
        ("warmup = len(loader) // 2", False),
        ("print(len(loader), 'batches')", False),
        ("print(f'batches of {batch_size}')", False),
        ("print('accumulates %d' % accumulate)", False),
        ("folder = 'runs/' + str(batch_size)", False),
        ("torch.save({'batch_size': batch_size}, 'settings.pt')", False),
        ("wandb.init(config=dict(accumulate=accumulate))", False),
    ],
)
def test_what_else_is_derived_from_the_numbers_keeps_them(before: str, edited: bool) -> None:
    text = NUMBERED.format(before=before, each="pass", at_step="pass", after="")
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits if edited else Advice), answer


@pytest.mark.parametrize(
    ("each", "at_step", "edited"),
    [
        ("if isinstance(loss, tuple):\n        loss = loss[0]", "pass", True),
        ("if cuda:\n        x = x.cuda()", "pass", True),
        ("pass", "if (i + 1) % (10 * accumulate) == 0:\n            print('ten steps')", True),
        ("pass", "if i + 1 == len(loader):\n            scheduler.step()", True),
        ("if torch.isnan(loss):\n        continue", "pass", False),
        ("if i >= 9:\n        continue", "pass", False),
        ("pass", "if i % 10 == 0:\n            print('ten batches')", False),
        ("if loss is not None:\n        x = x.cuda()", "pass", True),
        ("if not isinstance(loss, tuple) and cuda:\n        x = x.cuda()", "pass", True),
        ("if len(x) < 8:\n        continue", "pass", False),
        ("if loss.item() > accumulate:\n        continue", "pass", False),
        ("if loss.item() > len(loader):\n        continue", "pass", False),
        ("if y[0] != 'None':\n        continue", "pass", False),
        ("if loss is not None and torch.isnan(loss):\n        continue", "pass", False),
        ("pass", "if i > 9 and (i + 1) % (10 * accumulate) == 0:\n            print('ten steps')", False),
    ],
)
def test_what_a_micro_step_decides_keeps_their_number(each: str, at_step: str, edited: bool) -> None:
    text = LOADER.format(each=each, at_step=at_step, after="")
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits if edited else Advice), answer


@pytest.mark.parametrize(
    ("loop", "edited"),
    [
        ("enumerate(tqdm(loader, total=len(loader)))", True),
        ("enumerate(islice(loader, 100))", False),
        ("enumerate(zip(loader, unlabelled))", False),
    ],
)
def test_a_loop_that_may_leave_out_samples_keeps_the_size_of_batches(loop: str, edited: bool) -> None:
    text = LOADER.format(each="pass", at_step="pass", after="").replace("enumerate(loader)", loop)
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits if edited else Advice), answer


def test_the_loader_of_the_loop_is_the_one_that_is_changed() -> None:
    text = LOADER.format(each="pass", at_step="pass", after="").replace(", shuffle=True", "")
    held_out = "held_out = DataLoader(others, batch_size=64)\n"
    text = text.replace("loader = Data", f"{held_out}loader = Data", 1)
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits), answer
    assert held_out in answer.files["train.py"] and "DataLoader(data, batch_size=16)" in answer.files["train.py"]
