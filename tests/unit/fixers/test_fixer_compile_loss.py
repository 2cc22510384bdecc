"""compile-loss on losses as people write them: they run on the same numbers, and the right one is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Request, example_request
from diagnose.plugins import load

FIXER = load().fixers["compile-loss"]
PLAIN = (
    "import torch\nimport torch.nn.functional as F\n\ndef loss_of(logits, targets):\n"
    "    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())\n"
)
PROGRAMS = {
    "plain": PLAIN,
    "from torch": (
        "from torch import nn\n\nSCALE = 2.0\n\n\n# Scores to a loss.\ndef loss_of(scores, targets, weight=None):\n"
        "    log_p = scores.float().div(SCALE).log_softmax(-1)\n"
        "    return nn.functional.nll_loss(log_p.transpose(1, 2), targets, weight=weight)\n"
    ),
    "z-loss": (
        "import torch\nfrom torch.nn import functional as F\n\ndef loss_of(logits, y, z: float = 1e-4):\n"
        '    """Cross entropy, and a penalty on its normalisation."""\n    logits = logits.float()\n'
        "    spread = logits.logsumexp(-1)\n    return F.cross_entropy(logits.mT, y) + z * spread.square().mean()\n"
    ),
}


def request(text: str) -> Request:
    words = ("cross_entropy(", "log_softmax(", "logsumexp(")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if any(word in line for word in words)]
    return example_request("unfused-loss", text, lines=lines)


def results(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    with torch._dynamo.config.patch(disable=True):
        exec(compile(text, "train.py", "exec"), names)
        logits = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
        loss = names["loss_of"](logits, torch.arange(12).view(3, 4) % 7)
        loss.backward()
    assert logits.grad is not None
    return [loss.detach(), logits.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_patched_program_runs(name: str) -> None:
    text = PROGRAMS[name]
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert "@torch.compile\ndef loss_of" in patched
    for one, other in zip(results(text), results(patched), strict=True):
        assert torch.equal(one, other)


def test_of_two_losses_that_is_compiled_which_costs() -> None:
    text = PLAIN + PLAIN.split("\n\n")[1].replace("loss_of", "validation_loss")
    answer = FIXER.rewrite(example_request("unfused-loss", text, lines=[5]))
    assert isinstance(answer, Edits)
    assert answer.files["train.py"].count("@torch.compile") == 1
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None, "nobody says which of the two"


def test_a_loss_amid_the_training_is_left_with_advice() -> None:
    text = "import torch.nn.functional as F\n\nfor x, y in data:\n    F.cross_entropy(net(x).float(), y).backward()\n"
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Advice)
    assert "train.py:4" in answer.text


COMPILES = {
    "under its own name": "if args.compile:\n    loss_of = torch.compile(loss_of)\n",
    "under another name": "fast = loss_of\nif args.compile:\n    fast = torch.compile(fast, dynamic=True)\n",
    "in an expression": "f = torch.compile(loss_of) if args.compile else loss_of\n",
    "by keyword": "f = torch.compile(model=loss_of)\n",
    "within a partial function": "f = torch.compile(partial(loss_of, weight=None))\n",
    "handed to what compiles": (
        "class Trainer:\n    def __init__(self, criterion):\n        self.criterion = torch.compile(criterion)\n\n\n"
        "Trainer(loss_of)\n"
    ),
}


@pytest.mark.parametrize("way", COMPILES)
def test_a_loss_that_the_program_compiles_by_itself_stays(way: str) -> None:
    assert FIXER.rewrite(request(f"{PLAIN}\n\n{COMPILES[way]}")) is None


def test_a_loss_that_another_file_compiles_stays() -> None:
    train = "import torch\nfrom losses import loss_of\n\nif args.compile:\n    fast = torch.compile(loss_of)\n"
    given = request(PLAIN)
    assert FIXER.rewrite(replace(given, sources={"train.py": PLAIN, "main.py": train})) is None


@pytest.mark.parametrize("other", ["model", "loss_of_all", "step"])
def test_what_else_a_program_compiles_says_nothing_of_its_loss(other: str) -> None:
    text = f"{PLAIN}\n\nif args.compile:\n    {other} = torch.compile({other})\n"
    assert isinstance(FIXER.rewrite(request(text)), Edits)
