"""What `defer-item` moves changes neither what the program prints nor what it trains."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent
from types import ModuleType

import pytest
from deferring import FIXER, fixed
from program_outcome import outcome

from diagnose.fixer import Advice, Edits, Example, example_request

torch = pytest.importorskip("torch")
MOVED = [example for example in FIXER.examples if example.after is not None]


@pytest.mark.parametrize("example", MOVED)
def test_the_log_and_the_training_are_the_same_bit_for_bit(example: Example) -> None:
    assert example.after is not None
    before, after = outcome(example.before), outcome(example.after)
    assert before[0].count("\n") >= 1
    assert before == after


def test_the_norms_of_a_function_are_read_at_once() -> None:
    answer = fixed(
        "import torch\n\n\ndef norm(model):\n    total = 0.0\n    for p in model.parameters():\n"
        "        size = p.grad.data.norm(2)\n        total += size.item() ** 2\n    return total ** 0.5\n"
    )
    assert isinstance(answer, Edits)
    assert answer.files["train.py"] == (
        "import torch\n\n\ndef norm(model):\n    total = 0.0\n    total_values = []\n    for p in model.parameters():\n"
        "        size = p.grad.data.norm(2)\n        total_values.append(size.detach().clone())\n"
        "    if total_values:\n        for value in "
        "torch.cat([each.view(1).to(total_values[0].device) for each in total_values]).tolist():\n"
        "            total += value ** 2\n"
        "    return total ** 0.5\n"
    )


def test_where_a_neighbour_steers_nothing_is_moved_as_the_step_waits_all_the_same() -> None:
    text = FIXER.examples[0].before.replace(
        "    opt.step()\n", "    opt.step()\n    if loss.item() > 99:\n        break\n"
    )
    answer = fixed(text)
    assert isinstance(answer, Advice)
    assert "steers the program" in answer.text


def test_reads_of_all_parameters_are_joined_though_a_neighbour_steers() -> None:
    steers = "    if loss.item() > 99:\n        break\n"
    norms = "    for p in model.parameters():\n        total += p.grad.norm().item() ** 2\n"
    text = FIXER.examples[0].before.replace("    opt.step()\n", f"    total = 0.0\n{norms}    opt.step()\n{steers}")
    answer = fixed(text + "print(total)\n")
    assert isinstance(answer, Edits)
    assert "total_values" in answer.files["train.py"]
    assert "running += loss.item()" in answer.files["train.py"]


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("if loss.item() > 9: break", "steers"),
        ("print(loss.item())", "printed in every step"),
        ("shown = loss.item()\n    print(shown)", "used in every step, in line 8"),
        ("sink(loss.item())", "not understood"),
    ],
)
def test_the_advice_says_why_a_read_stays(step: str, why: str) -> None:
    answer = fixed(
        "import torch\nmodel, opt, bar = make()\nfor x in range(9):\n    loss = model(x)\n    loss.backward()\n"
        f"    opt.step()\n    {step}\n"
    )
    assert isinstance(answer, Advice)
    assert why in answer.text


def test_a_global_that_another_function_reads_is_left_alone() -> None:
    answer = fixed(
        "import torch\nrunning = 0.0\ndef show():\n    print(running)\nfor x in range(9):\n    loss = model(x)\n"
        "    loss.backward()\n    running += loss.item()\n"
    )
    assert isinstance(answer, Advice)
    assert "another function" in answer.text


def test_two_loops_over_one_variable_keep_apart() -> None:
    text = (
        "import torch\nmodel = torch.nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(4):\n    model(torch.ones(1, 2)).sum().backward()\n    total = 0.0\n"
        "    for p in model.parameters():\n        total += p.grad.norm().item()\n"
        "    for p in model.parameters():\n        total += 2 * p.norm().item()\n"
        "    opt.step()\n    if i % 2 == 0:\n        print(total)\n"
    )
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert ".item()" not in answer.files["train.py"]
    assert outcome(answer.files["train.py"]) == outcome(text)


IMAGENET = (Path(__file__).parents[2] / "programs" / "meters.py").read_text()


def test_meters_of_a_class_are_fed_where_they_are_displayed() -> None:
    answer = fixed(IMAGENET)
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert "losses_pending.append((loss.detach().clone(), images.size(0)))" in patched
    assert patched.count(".item()") == 2  # where the meter is fed, and in the validation, which does not train
    assert outcome(patched) == outcome(IMAGENET)


def test_the_loss_of_accumulated_steps_is_kept_on_the_device() -> None:
    text = (
        "import torch\nmodel = torch.nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "running = 0.0\nfor step in range(6):\n    for micro in range(2):\n"
        "        loss = model(torch.ones(1, 2) * micro).square().sum()\n        loss.backward()\n"
        "        running += loss.item()\n    opt.step()\n    opt.zero_grad()\n"
        "    if step % 3 == 0:\n        print(running)\n        running = 0.0\n"
    )
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert ".item()" not in answer.files["train.py"]
    assert outcome(answer.files["train.py"]) == outcome(text)


BAR = """\
import torch
from bars import Bar

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
bar = Bar([torch.ones(1, 2)] * 12)
for i in range(12):
    loss = model(torch.ones(1, 2)).square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bar.set_postfix(
        loss=loss.item(),
        step="a"
    )
"""
BARS = """\
class Bar:
    def __init__(self, over): self.over = over
    def set_postfix(self, **shown): print(shown)
"""


def test_a_progress_bar_is_told_every_tenth_loss_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = ModuleType("bars")
    exec(BARS, bars.__dict__)
    monkeypatch.setitem(sys.modules, "bars", bars)
    answer = fixed(BAR)
    assert isinstance(answer, Edits)
    guarded = "    if i % 10 == 0 or i == 12 - 1:\n        bar.set_postfix(\n            loss=loss.item(),\n"
    assert guarded in answer.files["train.py"]
    before, after = outcome(BAR), outcome(answer.files["train.py"])
    lines = before[0].splitlines()
    assert after[0].splitlines() == [lines[0], lines[10], lines[11]]
    assert after[1] == before[1]
    assert fixed(answer.files["train.py"]) is None


@pytest.mark.parametrize(
    "text",
    [
        BAR.replace("    opt.step()\n", "    opt.step()\n    if i == 7: break\n"),
        BAR.replace("for i in range(12)", "for i in numbers()"),
        BARS + BAR.replace("from bars import Bar\n", ""),
    ],
    ids=["a break", "no length", "a bar of its own"],
)
def test_a_bar_whose_last_value_could_be_another_is_left_alone(text: str) -> None:
    assert isinstance(fixed(text), Advice)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("wanted = boxes[image][matched[image]]", True),
        ("found = x[mask]", True),
        ("rows = mask.nonzero()", True),
        ("part = x[:, 3]", False),
        ("first = batches[step % 4]", False),
    ],
)
def test_a_mask_gets_advice(line: str, told: bool) -> None:
    answer = FIXER.rewrite(example_request("host-sync", f"import torch\n{line}\n", lines=[2]))
    assert isinstance(answer, Advice) == told
    if isinstance(answer, Advice):
        assert "weight" in answer.text


@pytest.mark.parametrize(
    ("shown", "edited"),
    [
        ("loss=loss", True),
        ("loss=f'{loss:.3f}', rate=opt.param_groups[0]['lr'], gb=torch.cuda.max_memory_allocated() / 1e9", True),
        ("loss=f'{float(loss):.3f}'", True),
        ("loss=(last := loss)", False),
        ("loss=meter.update(loss)", False),
        ("loss=note(loss)", False),
    ],
)
def test_what_a_bar_shows_is_left_alone_where_showing_it_does_more(shown: str, edited: bool) -> None:
    text = (
        "import torch\nfrom tqdm import tqdm\nbar = tqdm([])\nfor x in bar:\n    loss = model(x).mean()\n"
        f"    loss.backward()\n    opt.step()\n    bar.set_postfix({shown})\n"
    )
    answer = FIXER.rewrite(example_request("host-sync", text, lines=[8]))
    assert isinstance(answer, Edits if edited else Advice), answer


def test_a_bar_is_told_each_number_where_each_step_reads_it_anyway() -> None:
    text = (
        "import torch\nfrom tqdm import tqdm\nbar = tqdm(rows)\nfor x in bar:\n    loss = model(x).mean()\n"
        "    value = loss.item()\n    loss.backward()\n    opt.step()\n    bar.set_postfix(loss=value)\n"
        "    writer.add_scalar('loss', value, 0)\n"
    )
    answer = FIXER.rewrite(example_request("host-sync", text, lines=[6, 9]))
    assert isinstance(answer, Advice)
    assert "`value` is used in every step" in answer.text


def test_a_form_feed_ends_no_line() -> None:
    """Python counts lines so, and so do the places of findings."""
    text = "import torch\n# one part\x0c\nfor x in batches:\n    loss = model(x.unique()).mean()\n    loss.backward()\n"
    answer = FIXER.rewrite(example_request("host-sync", text, lines=[4]))
    assert isinstance(answer, Advice)
    assert "train.py:4 may read how large its result is" in answer.text


def stepped(before: str, step: str, after: str = "") -> str:
    """A program with lines before its loop, in each step, and after it."""
    inside = "".join(f"    {line}\n" for line in step.splitlines())
    return (
        "import torch\ntorch.manual_seed(0)\nmodel = torch.nn.Linear(4, 3)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\ncriterion = torch.nn.CrossEntropyLoss()\n"
        f"{before}\nfor i in range(23):\n    x, y = torch.randn(8, 4), torch.randint(3, (8,))\n    out = model(x)\n"
        f"    loss = criterion(out, y)\n    opt.zero_grad()\n    loss.backward()\n    opt.step()\n{inside}{after}"
    )


SCALE = "scale = torch.ones(1, dtype=torch.float64)\n"
METER = """class Meter:
    def __init__(self): self.sum = self.count = 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

"""


@pytest.mark.parametrize(
    "text",
    [
        stepped("acc = 0", "acc += (out.argmax(1) == y).sum().item() / len(y)", "print(acc, acc / 23)\n"),
        stepped("acc = 0", "acc += (out.argmax(1) == y).float().mean().item()", "print(acc)\n"),
        stepped("right = 0", "right += (out.argmax(1) == y).sum().item()", "print(right)\n"),
        stepped("total = 0", "total += loss.item() * x.size(0)", "total /= 23\nprint(total)\n"),
        stepped("total = 0", "total += loss.item() ** 2 // 0.1", "print(total)\n"),
        stepped("beta = 0.9\nema = 0.0", "ema = beta * ema + (1 - beta) * loss.item()", "print(ema)\n"),
        stepped("w = torch.tensor(0.3)\ntotal = 0.0", "total += loss.item() * w", "print(total)\n"),
        stepped("losses = []", "losses.append(loss.view(1).item())", "print(losses)\n"),
        stepped(f"{SCALE}kept = []", "scale.mul_(0.9)\nkept.append(scale.view(-1).item())", "print(kept)\n"),
        stepped(f"{SCALE}ema = 0.0", "if i == 0: ema = scale.item()\nema += scale.item()", "print(ema, scale)\n"),
        stepped(
            f"{METER}a, b = Meter(), Meter()",
            "a.update(loss.item(), 8)\nb.update(loss.item())",
            "print(a.sum, b.sum)\n",
        ),
    ],
)
def test_what_is_added_up_elsewhere_is_the_same_bit_for_bit(text: str) -> None:
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert outcome(answer.files["train.py"]) == outcome(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (stepped("losses, kept = [], []", "losses.append(loss.item())\nif i % 5 == 0: kept.append(losses)"), "grow"),
        (stepped("losses = []", "losses.append(loss.item())\nif i % 5 == 0: losses.pop(0)"), "changed"),
        (stepped("losses = []", "losses.append(loss.item())\nif i % 5 == 0: print(locals())"), "locals"),
        (stepped("n = 0", "if i > 30: n += loss.item()", "print(n)\n"), "starts as"),
        (stepped(METER.replace("+= n", "+= n; print(n)") + "a = Meter()", "a.update(loss.item())"), "print"),
        (
            stepped("total = 0.0", "try:\n    total += loss.item()\nexcept RuntimeError:\n    pass", "print(total)"),
            "caught",
        ),
        (
            stepped("total = 0.0", "with contextlib.suppress(RuntimeError):\n    total += loss.item()", "print(total)"),
            "caught",
        ),
        (
            "import contextlib\nhistory = {'loss': []}\nwith contextlib.suppress(KeyboardInterrupt):\n"
            "    for x in data:\n        loss = model(x)\n        loss.backward()\n"
            "        history['loss'].append(loss.item())\nprint(history)\n",
            "exception",
        ),
        (
            "def train(history):\n    for x in data:\n        loss = model(x)\n        loss.backward()\n"
            "        history['loss'].append(loss.item())\n",
            "is bound in a way that is not followed",
        ),
        (
            "history = {'loss': []}\ntry:\n    for x in data:\n        loss = model(x)\n        loss.backward()\n"
            "        history['loss'].append(loss.item())\nfinally:\n    print(history)\n",
            "exception",
        ),
    ],
)
def test_what_others_may_see_too_early_is_left_alone(text: str, why: str) -> None:
    answer = fixed(text)
    assert isinstance(answer, Advice)
    assert why in answer.text


def test_a_list_that_an_attribute_of_the_same_name_holds_is_no_sum() -> None:
    text = (
        "class Trainer:\n    def epoch(self):\n        history = self.history\n        for x in data:\n"
        "            loss = model(x)\n            loss.backward()\n            history.append(loss.item())\n"
        "        print(min(history), max(history))\n"
    )
    assert not isinstance(fixed(text), Edits)


_ROLLOUTS = """
import torch
class Options:
    rate = 0.1
options = Options()
print({0})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=options.rate)
for turn in range(3):
    clipped = []
    for epoch in range(4):
        ratio = model(torch.randn(8, 4))
        loss = ratio.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clipped += [(ratio.detach().abs() > 0.2).float().mean().item()]
    print(sum(clipped) / len(clipped))
"""


def test_what_looks_at_an_objects_attributes_sees_no_variable() -> None:
    text = _ROLLOUTS.format("vars(options)")
    answer = fixed(text)
    assert isinstance(answer, Edits)
    assert outcome(answer.files["train.py"])[1] == outcome(text)[1]
    everything = fixed(_ROLLOUTS.format("len(vars())"))
    assert isinstance(everything, Advice)
    assert "may be seen by `vars`" in everything.text


def test_a_reason_is_given_once() -> None:
    text = _ROLLOUTS.format("0").replace("        clipped += [", "        show(clipped)\n        clipped += [")
    answer = fixed(text)
    assert isinstance(answer, Advice)
    reasons = answer.text.split("; ")
    assert len(reasons) == len(set(reasons))


_FILLED = (
    "history = {'loss': []}\nfor x in data:\n    loss = model(x)\n    loss.backward()\n"
    "    history['loss'].append(loss.item())\nprint(history)\n"
)


def test_a_generator_beside_the_loop_closes_nothing() -> None:
    assert isinstance(fixed("def rows():\n    yield 1\n\n\n" + _FILLED), Edits)
    inside = "def rows():\n" + indent(_FILLED, "    ") + "    yield history\n"
    answer = fixed(inside)
    assert isinstance(answer, Advice)
    assert "generator" in answer.text
