"""Ranks that keep their buffers, by the option that the installed torch knows and does not warn of."""

from __future__ import annotations

import pytest

from diagnose.fixer import Edits, Facts, Gate, example_request
from diagnose.plugins import load

FIXERS = load().fixers
WRAPS = "from torch.nn.parallel import DistributedDataParallel\nmodel = DistributedDataParallel(model{})\n"
NEW, OLD = "2.13.0+cu130", "2.11.0"


def answer(text: str, version: str | None) -> Edits | None:
    request = example_request("exposed-communication", text, facts=Facts(torch_version=version))
    given = FIXERS["no-buffer-broadcast"].rewrite(request)
    return given if isinstance(given, Edits) else None


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        (NEW, "", ", forward_sync_buffers=False"),
        (OLD, "", ", broadcast_buffers=False"),
        (None, "", ", broadcast_buffers=False"),
        (NEW, ", forward_sync_buffers=True", ", forward_sync_buffers=False"),
        (NEW, ", broadcast_buffers=True", ", broadcast_buffers=False"),
    ],
)
def test_the_option_is_the_one_that_the_installed_torch_knows(version: str | None, before: str, after: str) -> None:
    given = answer(WRAPS.format(before), version)
    assert given is not None and given.files["train.py"] == WRAPS.format(after)


@pytest.mark.parametrize("option", ["forward_sync_buffers=False", "broadcast_buffers=False", "broadcast_buffers=sync"])
def test_an_option_that_is_set_already_stays(option: str) -> None:
    assert answer(WRAPS.format(f", {option}"), NEW) is None


def test_accelerates_arguments_know_the_former_name_alone() -> None:
    text = "from accelerate import DistributedDataParallelKwargs\nhandler = DistributedDataParallelKwargs()\n"
    given = answer(text, NEW)
    assert given is not None and "DistributedDataParallelKwargs(broadcast_buffers=False)" in given.files["train.py"]


@pytest.mark.parametrize(
    ("version", "tensor", "gate"),
    [
        (NEW, "torch.randn(8)", Gate.BITWISE),
        (OLD, "torch.randn(8)", Gate.TRAINING),
        (OLD, "torch.arange(8)", Gate.BITWISE),
    ],
)
def test_buffers_that_ranks_draw_begin_alike_or_it_is_a_change_of_the_training(
    version: str, tensor: str, gate: Gate
) -> None:
    model = (
        "import torch\nclass Waves(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.register_buffer('waves', {tensor})\n"
    )
    given = answer(model + WRAPS.format(""), version)
    assert given is not None and given.gate is gate


def test_gradients_reduced_by_hand_get_a_wrapper_without_a_warning() -> None:
    fixer = FIXERS["use-ddp"]
    before, after = fixer.examples[0].before, fixer.examples[0].after
    request = example_request("unoverlapped-gradients", before, facts=Facts(torch_version=NEW))
    given = fixer.rewrite(request)
    assert after is not None and isinstance(given, Edits)
    assert given.files["train.py"] == after.replace("broadcast_buffers", "forward_sync_buffers")
