"""weigh-masked on losses over masks as people write them: the same losses and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Request, example_request
from diagnose.plugins import load

FIXER = load().fixers["weigh-masked"]
HEAD = "import torch\nimport torch.nn.functional as F\n\n"
PROGRAMS = {
    "boxes": (
        HEAD + "def loss_of(x, y, mask):\n    losses = []\n    for image in range(len(x)):\n"
        "        wanted = y[image][mask[image]]\n        found = x[image][mask[image]]\n"
        "        losses.append(F.smooth_l1_loss(found, wanted, reduction='sum') / mask[image].sum().clamp(min=1))\n"
        "    return torch.stack(losses).mean()\n",
        "entries.masked_fill(~mask[image].unsqueeze(-1), 0).sum()",
    ),
    "depth": (
        "import torch\nfrom torch import nn\n\nclass Loss(nn.Module):\n    def forward(self, x, y, valid_mask):\n"
        "        return nn.functional.l1_loss(x[valid_mask], y[valid_mask])\nloss_of = Loss()\n",
        "nn.functional.l1_loss(x, y, reduction=",
    ),
    "entries": (
        HEAD + "def loss_of(x, y, mask):\n    error = (x - y).square()\n    kept = error[mask]\n"
        "    return 0.5 * kept.mean() + x.square().mean()\n",
        "0.5 * (entries.mean(-1).masked_fill(~mask, 0).sum() / mask.sum())",
    ),
    "words": (
        HEAD + "def loss_of(x, y, mask):\n    words = y.sum(-1).abs().long() % 5\n"
        "    return F.cross_entropy(x[mask], words[mask], reduction='sum') / mask.sum()\n",
        "F.cross_entropy(x.flatten(0, -2), words.masked_fill(~mask, -100).flatten(), reduction='sum')",
    ),
}


def request(text: str) -> Request:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "mask]" in line or "[mask[" in line]
    return example_request("host-sync", text, lines=lines)


def results(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 6, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    mask = torch.rand(3, 6, generator=generator) < 0.5
    y[~mask] = 1e30  # what does not count may be anything
    x.requires_grad_()
    loss = names["loss_of"](x, y, mask)
    loss.backward()
    assert x.grad is not None
    return [loss.detach(), x.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out(name: str) -> None:
    text, wanted = PROGRAMS[name]
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert wanted in patched
    for one, other in zip(results(text), results(patched), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_only_lines_that_wait_are_taken_for_masks() -> None:
    text, _ = PROGRAMS["depth"]
    assert FIXER.rewrite(example_request("host-sync", text, lines=[2])) is None


def test_what_changes_in_between_is_left_alone() -> None:
    text = HEAD + "def loss_of(x, y, mask):\n    kept = x[mask]\n    {}\n    return kept.mean()\n"
    for between, edited in (("x = x + 1", False), ("mask[0] = True", False), ("y = y + 1", True)):
        answer = FIXER.rewrite(request(text.format(between)))
        assert isinstance(answer, Edits) is edited
        assert not isinstance(answer, Advice)
