"""fuse-cross-entropy on losses as people write them: the same losses and gradients, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["fuse-cross-entropy"]
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
PROGRAMS = {
    "rows": (
        "def loss_of(logits, targets):\n"
        "    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=3)\n",
        "cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=3)",
    ),
    "criterion": (
        "criterion = nn.CrossEntropyLoss(label_smoothing=0.1)\n\n\ndef loss_of(output, y):\n"
        "    output = output.reshape(-1, 7)\n    return criterion(output, y.flatten())\n",
        "return cross_entropy(output, y.flatten(), label_smoothing=0.1)",
    ),
    "member, shifted": (
        "class Loss(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.loss = nn.CrossEntropyLoss(reduction='sum')\n\n    def forward(self, logits, labels):\n"
        "        shifted = logits[..., :-1, :].contiguous()\n"
        "        return self.loss(shifted.view(-1, shifted.size(-1)), labels[:, 1:].reshape(-1))\n\n\n"
        "loss_of = Loss()\n",
        "            shifted.view(-1, shifted.size(-1)),\n            labels[:, 1:].reshape(-1),\n",
    ),
    "classes second": (
        "def loss_of(logits, y):\n    return F.cross_entropy(logits.permute(0, 2, 1).double(), y).mean()\n",
        None,
    ),
    "written out": (
        "def loss_of(logits, y):\n    log_p = torch.log_softmax(logits.float().double(), dim=-1)\n"
        "    return -log_p.gather(-1, y.unsqueeze(-1)).mean()\n",
        "    return cross_entropy(logits.float().double(), y)\n",
    ),
    "written out, summed": (
        "def loss_of(logits, y):\n    picked = F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)\n"
        "    return -picked.sum()\n",
        '    return cross_entropy(logits, y, reduction="sum")\n',
    ),
    "written out, in rows": (
        "def loss_of(logits, y):\n    log_p = F.log_softmax(logits.view(-1, 7), dim=1)\n"
        "    return -log_p.gather(1, y.view(-1, 1)).mean()\n",
        "    return cross_entropy(logits.view(-1, 7), y.flatten())\n",
    ),
    "written out, masked": (
        "def loss_of(logits, y):\n    lp = logits.log_softmax(-1)\n"
        "    nll = -lp.gather(-1, y.unsqueeze(-1)).squeeze(-1)\n    keep = (y != 0).to(logits.dtype)\n"
        "    return (nll * keep).sum() / keep.sum().clamp(min=1)\n",
        '    nll = cross_entropy(logits, y, reduction="none")\n    keep = (y != 0)',
    ),
    "classes second, none": (
        "def loss_of(logits, y):\n    losses = F.cross_entropy(logits.permute(0, 2, 1), y, reduction='none')\n"
        "    return losses.mean()\n",
        "losses = cross_entropy(logits, y, reduction='none')",
    ),
    "partial": (
        "from functools import partial\n\nloss_fn = partial(F.cross_entropy, ignore_index=3)\n\n\n"
        "def loss_of(logits, y):\n    return loss_fn(logits.flatten(0, 1), y.flatten(), reduction='sum')\n",
        "    return cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=3, reduction='sum')\n",
    ),
    "partial member, told otherwise": (
        "import functools\n\n\nclass Loss(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.loss = functools.partial(F.cross_entropy, reduction='none')\n\n"
        "    def forward(self, logits, y):\n"
        "        return self.loss(logits.flatten(0, 1), y.flatten(), reduction='sum')\n\n\nloss_of = Loss()\n",
        "        return cross_entropy(logits.flatten(0, 1), y.flatten(), reduction='sum')\n",
    ),
    "rows of logarithms": (
        "def loss_of(logits, y):\n    log_p = F.log_softmax(logits / 2, -1)\n"
        "    return F.nll_loss(log_p.view(-1, log_p.size(-1)), y.view(-1), ignore_index=3)\n",
        "    return cross_entropy((logits / 2).flatten(0, -2), y.view(-1), ignore_index=3)\n",
    ),
}


def results(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(7, (3, 4), generator=generator)
    loss = names["loss_of"](logits, targets)
    loss.backward()
    assert logits.grad is not None
    return [loss.detach(), logits.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_come_out(name: str) -> None:
    text, wanted = PROGRAMS[name]
    answer = FIXER.rewrite(example_request("unfused-loss", HEAD + text))
    if wanted is None:
        assert answer is None, "a change to another format than float32 is kept"
        return
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert wanted in patched
    for one, other in zip(results(HEAD + text), results(patched), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["rows", "written out"])
def test_a_compiled_loss_is_left_alone(name: str) -> None:
    text = HEAD + "@torch.compile\n" + PROGRAMS[name][0]
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None


def test_a_change_to_single_precision_goes_with_a_written_loss() -> None:
    text = HEAD + PROGRAMS["written out"][0].replace(".float().double()", ".float()")
    answer = FIXER.rewrite(example_request("unfused-loss", text))
    assert isinstance(answer, Edits)
    assert "    return cross_entropy(logits, y)\n" in answer.files["train.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    return -log_p", "    entropy = -(log_p.exp() * log_p).sum(-1).mean()\n    return 0.1 * entropy - log_p"),
        ("dim=-1)", "dim=0)"),
        ("    return -log_p", "    return log_p"),
        (".mean()", ".mean(0)"),
    ],
)
def test_likelihoods_that_look_alike_stay(before: str, after: str) -> None:
    text = HEAD + PROGRAMS["written out"][0].replace(before, after)
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None


@pytest.mark.parametrize(
    "built",
    [
        "partial(F.cross_entropy, weight=seldom)",
        "partial(F.cross_entropy, ignore_index=PAD)",
        "partial(F.cross_entropy, scores)",
        "partial(F.cross_entropy, target=wanted)",
        "partial(F.cross_entropy, **options)",
        "partial(F.mse_loss, reduction='sum')",
    ],
)
def test_partial_functions_that_are_others_stay(built: str) -> None:
    text = f"from functools import partial\n\nloss_fn = {built}\n\n\ndef loss_of(logits, y):\n"
    text += "    return loss_fn(logits.flatten(0, 1), y.flatten())\n"
    assert FIXER.rewrite(example_request("unfused-loss", HEAD + text)) is None


def with_targets(made: str, taken: str) -> str:
    """A loss whose targets are made so, and taken so."""
    step = f"\n\ndef step(model, x, y):\n    return loss_of(model(x), {made})\n"
    return f"{HEAD}def loss_of(logits, y):\n    return F.cross_entropy(logits.flatten(0, 1), {taken})\n{step}"


@pytest.mark.parametrize("taken", ["y.flatten(0, 1)", "y.contiguous().flatten(0, 1)", "y.flatten(end_dim=1)"])
@pytest.mark.parametrize(
    "made",
    [
        "y.softmax(-1)",
        "F.one_hot(y, 7)",
        "F.one_hot(y, 7).float()",
        "y.to(torch.bfloat16)",
        "y / y.sum(-1, keepdim=True)",
        "0.9 * y + 0.1",
        "torch.zeros(3, 4, 7).scatter_(-1, y.unsqueeze(-1), 1)",
    ],
)
def test_probabilities_of_classes_are_no_indices(made: str, taken: str) -> None:
    assert FIXER.rewrite(example_request("unfused-loss", with_targets(made, taken))) is None
    assert FIXER.rewrite(example_request("unfused-loss", with_targets("y", taken.replace("y", f"({made})", 1)))) is None


def test_probabilities_that_are_passed_by_name_alone_are_no_indices() -> None:
    text = with_targets("y=y.softmax(-1)", "y.flatten(0, 1)").replace("(logits, y):", "(logits, *, y):")
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None
    indices = text.replace("y.softmax(-1)", "y")
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", indices)), Edits)


def some_mixed(mixed: str) -> str:
    """A loss whose targets are indices in some steps only."""
    text = with_targets("y", "t.flatten(0, 1)")
    return text.replace(
        "    return F.cross", f"    t = y\n    if random() < 0.1:\n        {mixed}\n    return F.cross", 1
    )


@pytest.mark.parametrize("mixed", ["t = 0.9 * F.one_hot(y, 7) + 0.1 / 7", "t = y.softmax(-1)", "t = t / 2", "t *= 0.5"])
def test_targets_that_are_probabilities_in_some_steps_are_no_indices(mixed: str) -> None:
    assert FIXER.rewrite(example_request("unfused-loss", some_mixed(mixed))) is None


@pytest.mark.parametrize("mixed", ["t = y.flip(0)", "t = torch.where(y > 2, 2, y)"])
def test_targets_that_are_other_indices_in_some_steps_stay_indices(mixed: str) -> None:
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", some_mixed(mixed))), Edits)


@pytest.mark.parametrize(
    "made",
    [
        "y",
        "y.to(device)",
        "y.long()",
        "y.view(3, 4)",
        "y * (y > 0)",
        "torch.zeros(3, 4).to(torch.long)",
        "torch.zeros(3, 4, dtype=torch.long)",
        "torch.rand(3, 4, 7).argmax(-1)",
    ],
)
def test_indices_of_classes_stay_indices(made: str) -> None:
    answer = FIXER.rewrite(example_request("unfused-loss", with_targets(made, "y.flatten(0, 1)")))
    assert isinstance(answer, Edits)
    assert "    return cross_entropy(logits.flatten(0, 1), y.flatten(0, 1))\n" in answer.files["train.py"]
