"""Programs whose copies were taken out print the same numbers."""

from __future__ import annotations

import contextlib
import io

import pytest

from diagnose.fixer import Edits
from diagnose.plugins import load

FIXER = load().fixers["keep-on-device"]

_TOP = "import numpy as np\nimport torch\nfrom torch import nn\n\ntorch.manual_seed(0)\nmodel = nn.Linear(4, 3)\n"
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
_UPDATE = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"

PEAKS = (
    _TOP + _OPTIMIZER + "peaks = []\nfor step in range(5):\n    hidden = model(torch.randn(8, 4))\n"
    "    loss = hidden.square().mean()\n"
    + _UPDATE
    + "    a = hidden.detach().float().cpu().numpy()\n    peaks.append(float(np.abs(a[:, 0]).max()))\n"
    "print(peaks, max(peaks))\n"
)
COUNTS = (
    _TOP + _OPTIMIZER + "def train():\n    right = 0\n    for step in range(5):\n"
    "        x, y = torch.randn(8, 4), torch.randint(3, (8,))\n"
    "        out = model(x)\n        loss = nn.functional.cross_entropy(out, y)\n"
    + "".join("    " + line + "\n" for line in _UPDATE.splitlines())
    + "        guess = out.argmax(dim=1).cpu().numpy()\n        truth = y.cpu().numpy()\n"
    "        right += int(np.sum(guess == truth))\n        share = float((guess == truth).mean())\n"
    "        print(right, share, loss.item())\n\ntrain()\n"
)
WEIGHTS = (
    _TOP + _OPTIMIZER + "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nfor step in range(5):\n"
    "    x, y = torch.randn(8, 4), torch.randint(3, (8,))\n    rare = torch.tensor([1.0, 2.0, 4.0]).to(device)\n"
    "    mask = torch.tril(torch.ones(8, 4)).to(x.device)\n"
    "    loss = nn.functional.cross_entropy(model(x * mask), y, weight=rare)\n" + _UPDATE + "    print(loss.item())\n"
)


def printed(text: str) -> str:
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    return told.getvalue()


@pytest.mark.parametrize("text", [PEAKS, COUNTS, WEIGHTS], ids=["peaks", "counts", "weights"])
def test_the_patched_program_prints_the_same_numbers(text: str) -> None:
    answer = FIXER.rewrite(FIXER.examples[0].request(text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert ".numpy()" not in patched
    assert printed(patched) == printed(text) != ""


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("s.append(float((a > 0).mean()))", "s.append((a > 0).sum().item() / (a > 0).numel())"),
        ("s = 1 - (a > 0).mean().item()", "s = 1 - ((a > 0).sum().item() / (a > 0).numel())"),
        ("s = int((a > 0).sum())", "s = (a > 0).sum().item()"),
    ],
)
def test_the_mean_of_a_mask_is_a_quotient_of_whole_numbers(line: str, after: str) -> None:
    text = _TOP + "for x in loader:\n    loss = model(x)\n" + _UPDATE + f"    a = h.float().cpu().numpy()\n    {line}\n"
    answer = FIXER.rewrite(FIXER.examples[0].request(text))
    assert isinstance(answer, Edits)
    assert f"    {after}\n" in answer.files["train.py"]


@pytest.mark.parametrize("line", ["s.append(float(a.mean()))", "s.append(float(a.sum()))", "s.append((a > 0).mean())"])
def test_sums_of_floats_and_numbers_of_numpys_stay(line: str) -> None:
    text = _TOP + "for x in loader:\n    loss = model(x)\n" + _UPDATE + f"    a = h.float().cpu().numpy()\n    {line}\n"
    assert not isinstance(FIXER.rewrite(FIXER.examples[0].request(text)), Edits)


ANEW = """import torch
from torch import nn
{above}
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rates = [1.0, 2.0, 4.0]
for x, y in loader:
    made = torch.tensor({of}).to(device)
    loss = nn.functional.cross_entropy(model(x), y, weight=made)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
_OPTIONS = "class Options:\n    rate = 1.0\n\noptions = Options()\n"


@pytest.mark.parametrize(
    ("above", "of", "after", "shared"),
    [
        ("", "rates", "print(len(rates), sum(rates), rates[0])", True),
        ("def mean(of):\n    return sum(of) / len(of)\n", "rates", "print(mean(rates), mean(made))", True),
        (_OPTIONS, "options.rate", "print(options.rate)", True),
        ("def show(of):\n    rates = [1]\n    rates[0] = of\n", "rates", "show(loss)", True),
        ("", "rates", "rates.append(1.0)", False),
        ("", "rates", "made.requires_grad = True", False),
        ("", "rates", "made.requires_grad_()", False),
        ("", "rates", "kept.append(made)", False),
        ("", "rates", "kept['rates'] = made", False),
        ("", "rates", "other, seen = made, 1", False),
        ("def adapt(of):\n    of[0] *= 0.9\n", "rates", "adapt(rates)", False),
        ("def adapt(of):\n    of[0] *= 0.9\n", "rates", "adapt(of=made)", False),
        ("def adapt(of):\n    inner(of)\n", "rates", "adapt(made)", False),
        ("def adapt():\n    rates[0] *= 0.9\n", "rates", "adapt()", False),
        ("def adapt():\n    global rates\n    rates = [one + 1 for one in rates]\n", "rates", "adapt()", False),
        (f"{_OPTIONS}def adapt():\n    options.rate *= 0.9\n", "options.rate", "adapt()", False),
        ("class Net(nn.Module):\n    def forward(self, x, w):\n        w.zero_()\n", "rates", "other(x, made)", False),
    ],
)
def test_a_tensor_is_made_once_only_where_nothing_in_the_loop_may_change_it(
    above: str, of: str, after: str, shared: bool
) -> None:
    answer = FIXER.rewrite(FIXER.examples[0].request(ANEW.format(above=above, of=of, after=after)))
    edited = isinstance(answer, Edits) and "before the loop" in answer.summary
    assert edited is shared


@pytest.mark.parametrize("change", ["requires_grad_()", "zero_()"])
def test_a_tensor_without_a_name_that_is_changed_is_made_anew(change: str) -> None:
    text = ANEW.format(above="", of="rates", after="pass").replace(".to(device)", f".to(device).{change}")
    assert not isinstance(FIXER.rewrite(FIXER.examples[0].request(text)), Edits)
