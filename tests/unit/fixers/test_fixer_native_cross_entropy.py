"""native-cross-entropy on losses as people write them: the same losses and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["native-cross-entropy"]
PROGRAMS = {
    "language model": (
        "import torch\n\ndef loss_of(logits, targets):\n    log_p = torch.log_softmax(logits, dim=-1)\n"
        "    return -log_p.gather(-1, targets.unsqueeze(-1)).mean()\n",
        (3, 4),
        "torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())",
    ),
    "by hand": (
        "import torch\nimport torch.nn.functional as F\n\nclass Loss(torch.nn.Module):\n"
        "    def forward(self, logits, y):\n        logprobs = F.log_softmax(logits, dim=1)\n        n = y.shape[0]\n"
        "        loss = -logprobs[range(n), y].mean()\n        return loss\nloss_of = Loss()\n",
        (6,),
        "loss = F.cross_entropy(logits, y)",
    ),
    "in a column": (
        "import torch\nimport torch.nn.functional as F\n\ndef loss_of(logits, y):\n"
        "    log_p = F.log_softmax(logits.view(-1, 7), dim=1)\n    return -log_p.gather(1, y.view(-1, 1)).mean()\n",
        (3, 4),
        "return F.cross_entropy(logits.view(-1, 7), y.flatten())",
    ),
    "masked": (
        "import torch\nfrom torch.nn import functional as F\n\ndef loss_of(logits, y):\n"
        "    lp = logits.log_softmax(-1)\n    nll = -lp.gather(-1, y.unsqueeze(-1)).squeeze(-1)\n"
        "    keep = (y != 0).to(lp.dtype)\n    return (nll * keep).sum() / keep.sum().clamp(min=1)\n",
        (3, 4),
        None,
    ),
    "masked by targets": (
        "import torch\nfrom torch.nn import functional as F\n\ndef loss_of(logits, y):\n"
        "    lp = logits.log_softmax(-1)\n    nll = -lp.gather(-1, y.unsqueeze(-1)).squeeze(-1)\n"
        "    keep = (y != 0).to(logits.dtype)\n    return (nll * keep).sum() / keep.sum().clamp(min=1)\n",
        (3, 4),
        'nll = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view_as(y)',
    ),
    "summed": (
        "import torch\nfrom torch import nn\n\ndef loss_of(out, target):\n"
        "    p = nn.functional.log_softmax(out.view(-1, 7), -1)\n"
        "    return nn.functional.nll_loss(p, target.view(-1), reduction='sum')\n",
        (3, 4),
        "nn.functional.cross_entropy(out.view(-1, 7), target.view(-1), reduction='sum')",
    ),
    "rows of logarithms": (
        "import torch\nimport torch.nn.functional as F\n\ndef loss_of(logits, y):\n"
        "    lprobs = F.log_softmax(logits / 2, dim=-1)\n    lprobs = lprobs.view(-1, lprobs.size(-1))\n"
        "    return F.nll_loss(lprobs, y.view(-1), ignore_index=3)\n",
        (3, 4),
        "    return F.cross_entropy((logits / 2).flatten(0, -2), y.view(-1), ignore_index=3)\n",
    ),
    "rows of logarithms, their size taken before": (
        "import torch\nimport torch.nn.functional as F\n\ndef loss_of(logits, y):\n    B, T, V = logits.shape\n"
        "    return F.nll_loss(F.log_softmax(logits, -1).view(B * T, V), y.view(-1), reduction='none').sum()\n",
        (3, 4),
        "F.cross_entropy(logits.flatten(0, -2), y.view(-1), reduction='none').sum()",
    ),
}


def results(text: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*shape, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(7, shape, generator=generator)
    loss = names["loss_of"](logits, targets)
    loss.backward()
    assert logits.grad is not None
    return [loss.detach(), logits.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out(name: str) -> None:
    text, shape, wanted = PROGRAMS[name]
    answer = FIXER.rewrite(example_request("unfused-loss", text))
    if wanted is None:
        assert answer is None, "the log-probabilities are read for their format too"
        return
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert wanted in patched
    for one, other in zip(results(text, shape), results(patched, shape), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "rows",
    [
        "F.log_softmax(logits, -1).view(-1, 7)",
        "F.log_softmax(logits, -1).view(logits.size(0), -1)",
        "F.log_softmax(logits, -1).view(-1, y.size(-1))",
        "F.log_softmax(logits, 1).view(-1, logits.size(-1))",
        "F.log_softmax(logits, -1).transpose(0, 1).flatten(0, 1)",
        "F.log_softmax(logits, -1).view(-1, V)",
    ],
)
def test_rows_that_are_not_seen_to_be_whole_stay(rows: str) -> None:
    head = "import torch.nn.functional as F\n\n\ndef loss_of(logits, y):\n"
    taken = "    B, T, V = logits.shape\n    logits = torch.cat([logits, logits], -1)\n"
    text = f"{head}{taken}    return F.nll_loss({rows}, y.view(-1))\n"
    whole = f"{head}{taken}    return F.nll_loss(F.log_softmax(logits, -1).view(-1, logits.size(-1)), y.view(-1))\n"
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", whole)), Edits)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("nll = -lp.gather(-1, y.unsqueeze(-1)).squeeze()\nreturn nll[0].sum()", "axes of one entry go, too"),
        ("nll = -lp.gather(-1, y.unsqueeze(-1)).squeeze(0)\nreturn nll[0].sum()", "another axis goes"),
        ("nll = -lp[torch.arange(len(y)), y]\nreturn (nll * (y >= 0)).mean()", "-1 counts from the last class"),
        ("return -lp[torch.arange(len(y)), 2].mean()", "a class is no tensor of classes"),
        ("return -lp[torch.arange(3), y].mean()", "perhaps some first rows"),
        ("with torch.no_grad():\n    return -lp.gather(-1, y.unsqueeze(-1)).mean()", "the logarithms have a gradient"),
    ],
)
def test_look_alikes_are_left_alone(lines: str, why: str) -> None:
    head = "import torch\nfrom torch.nn import functional as F\n\ndef loss_of(logits, y):\n"
    head += "    lp = F.log_softmax(logits, {})\n"
    axis = "1" if "lp[" in lines else "-1"
    text = head.format(axis) + "".join(f"    {line}\n" for line in lines.splitlines())
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None, why
