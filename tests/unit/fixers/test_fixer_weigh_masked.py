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
        HEAD + "def sum_of(x, y, mask):\n    losses = []\n    for image in range(len(x)):\n"
        "        wanted = y[image][mask[image]]\n        found = x[image][mask[image]]\n"
        "        losses.append(F.smooth_l1_loss(found, wanted, reduction='sum') / mask[image].sum().clamp(min=1))\n"
        "    return torch.stack(losses).mean()\n\n"
        "def loss_of(x, y):\n    return sum_of(x, y, ~torch.isnan(y[..., 0]))\n",
        "entries.sum() / mask[image].sum().clamp(min=1)",
    ),
    "depth": (
        "import torch\nfrom torch import nn\n\nclass Loss(nn.Module):\n    def forward(self, x, y, valid_mask):\n"
        "        return nn.functional.l1_loss(x[valid_mask], y[valid_mask])\ncriterion = Loss()\n\n"
        "def loss_of(x, y):\n    valid = y.isfinite()\n    return criterion(x, y, valid)\n",
        "nn.functional.l1_loss(inputs, targets, reduction=",
    ),
    "missing": (
        HEAD + "def loss_of(x, y):\n    valid_mask = ~torch.isnan(y)\n"
        "    return F.l1_loss(x[valid_mask], y[valid_mask]) + 0.5 * F.mse_loss(x[valid_mask], y[valid_mask])\n",
        "left_out = ~valid_mask\n"
        "    inputs, targets = (each.masked_fill(left_out, 0) for each in (x, y.expand_as(x)))\n",
    ),
    "entries": (
        HEAD + "def loss_of(x, y):\n    mask = y[..., 0] == y[..., 0]\n    error = torch.square(x - y)\n"
        "    kept = error[mask]\n    return 0.5 * kept.mean() + x.square().mean()\n",
        "0.5 * (entries.mean(-1).sum() / mask.sum())",
    ),
    "roots": (
        HEAD
        + "def loss_of(x, y):\n    mask = (x > 0) & torch.isfinite(y)\n    return F.mse_loss(x[mask].sqrt(), y[mask])"
        " + F.mse_loss(x[mask], y[mask])\n",
        "F.mse_loss(x[mask].sqrt(), y[mask]) + (entries.mean(-1).sum() / mask.sum())",
    ),
    "words": (
        HEAD + "def loss_of(x, y):\n    mask = torch.isfinite(y).all(-1)\n"
        "    words = y.nan_to_num(0).sum(-1).abs().long() % 5\n"
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
    y[torch.rand(3, 6, generator=generator) < 0.5] = torch.nan  # what does not count may be anything
    x.requires_grad_()
    loss = names["loss_of"](x, y)
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
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("mask", ["y > 0", "(y > 0).clone()"])
@pytest.mark.parametrize("column", ["x", "y"])
def test_a_loss_that_would_compare_all_with_all_is_an_error_at_once(loss: str, mask: str, column: str) -> None:
    text = HEAD + f"def loss_of(x, y):\n    mask = {mask}\n    return F.{loss}(x[mask], y[mask])\n"
    text = text.replace(f"{column}[mask]", f"{column}.unsqueeze(-1)[mask]")
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Edits)
    names: dict[str, Any] = {}
    exec(compile(answer.files["train.py"], "train.py", "exec"), names)
    with pytest.raises(RuntimeError, match="expand"):
        names["loss_of"](torch.ones(6), torch.tensor([-1.0, 1, 1, -1, -1, -1]))


def test_only_lines_that_wait_are_taken_for_masks() -> None:
    text, _ = PROGRAMS["depth"]
    assert FIXER.rewrite(example_request("host-sync", text, lines=[2])) is None


def test_what_changes_in_between_is_left_alone() -> None:
    head = HEAD + "def loss_of(x, y):\n    mask = y > 0\n    x = x.abs()\n    kept = x[mask]\n"
    text = head + "    {}\n    return F.mse_loss(kept, y[mask])\n"
    for between, edited in (("x = x + 1", False), ("mask[0] = True", False), ("z = y + 1", True)):
        answer = FIXER.rewrite(request(text.format(between)))
        assert isinstance(answer, Edits) is edited
        assert not isinstance(answer, Advice)


@pytest.mark.parametrize(
    "mask",
    [
        "torch.randperm(6)[:3]",
        "(y > 0).nonzero()[:, 0]",
        "(y > 0).byte()",
        "(y > 0).to(torch.uint8)",
        "y.argmax(-1)",
        "slice(0, 3)",
    ],
)
def test_an_index_that_is_no_mask_is_left_alone(mask: str) -> None:
    text = HEAD + "def loss_of(x, y):\n    mask = {}\n    return F.mse_loss(x[mask], y[mask])\n"
    assert FIXER.rewrite(request(text.format(mask))) is None
    assert FIXER.rewrite(request(text.format("torch.isnan(y)"))) is not None


def test_a_mask_that_one_call_gives_otherwise_is_left_alone() -> None:
    text = HEAD + "def loss_of(x, y, mask):\n    return F.mse_loss(x[mask], y[mask])\n\nloss_of(a, b, b > 0)\n"
    assert FIXER.rewrite(request(text)) is not None
    assert FIXER.rewrite(request(text + "loss_of(a, b, order)\n")) is None
    assert FIXER.rewrite(request(text.replace("loss_of(a, b, b > 0)", ""))) is None
