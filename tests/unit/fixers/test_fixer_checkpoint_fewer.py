"""checkpoint-fewer on programs that run: the same losses and gradients to the bit, with dropout in the blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from diagnose.fixer import Advice, Edits, Gate, Request, Scalar, example_request
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["checkpoint-fewer"]

BLOCK = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.drop = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x, scale=1.0):
        return x + scale * self.drop(torch.tanh(self.up(x)))
"""
LOOP = f"""import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
{BLOCK}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, scale=0.5, use_reentrant=False)
        return x
"""
FLAG = f"""import torch
import torch.utils.checkpoint
from torch import nn
{BLOCK}
class Net(nn.Module):
    def __init__(self, checkpointed=True):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.checkpointed = checkpointed

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            if self.checkpointed and self.training:
                x = torch.utils.checkpoint.checkpoint(block, x, 2.0, use_reentrant=False)
            else:
                x = block(x, 2.0)
        return x
"""
WHOLE = f"""import torch
from torch import nn
from torch.utils import checkpoint as ckpt
{BLOCK}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Block(), Block()

    def _body(self, x):
        return self.two(self.one(x))

    def forward(self, x):
        return ckpt.checkpoint(
            self._body,
            x,
            use_reentrant=False,
            preserve_rng_state=True,
        )
"""
PROGRAMS = {"loop": LOOP, "flag": FLAG, "whole": WHOLE}


def request(text: str, checkpointed: str = "none") -> Request:
    return example_request("over-checkpointing", text, setting={"checkpointed": checkpointed})


def trained(text: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(text, "train.py", "exec"), names)
    torch.manual_seed(0)
    net = names["Net"]()
    loss = net(torch.randn(4, 8)).square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("checkpointed", ["none", "every other"])
def test_the_same_bits_come_out(name: str, checkpointed: str) -> None:
    text = PROGRAMS[name]
    answer = FIXER.rewrite(request(text, checkpointed))
    if name == "whole" and checkpointed != "none":
        assert answer is None, "nothing is checkpointed in turns here"
        return
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    before, after = trained(text), trained(patched)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert ("checkpoint(block" in patched) == (checkpointed != "none")


@pytest.mark.parametrize("effect", ["self.calls += 1", "print(x.mean())", "self.seen.append(x.detach())"])
@pytest.mark.parametrize("checkpointed", ["none", "every other"])
def test_what_the_second_forward_pass_repeats_stays(effect: str, checkpointed: str) -> None:
    text = LOOP.replace("        return x + scale", f"        {effect}\n        return x + scale")
    answer = FIXER.rewrite(request(text, checkpointed))
    assert isinstance(answer, Advice)
    assert "train.py:" in answer.text


def test_running_statistics_that_move_once_are_another_training() -> None:
    answer = FIXER.rewrite(request(LOOP.replace("nn.Dropout(0.5)", "nn.BatchNorm1d(8)")))
    assert isinstance(answer, Edits)
    assert answer.gate is Gate.TRAINING


def test_every_other_block_is_a_setting_where_there_is_a_loop() -> None:
    assert [each["checkpointed"] for each in FIXER.settings(request(LOOP))] == ["none", "every other"]
    assert [each["checkpointed"] for each in FIXER.settings(request(WHOLE))] == ["none"]


def measured(text: str, limit_bytes: int) -> Request:
    """Four blocks that are all computed again; each would keep 100 beside an output of 10."""
    line = text[: text.index("checkpoint(block")].count("\n") + 1
    columns = {"order": range(4), "kept_bytes": [10] * 4, "boundary_bytes": [10] * 4, "cast_bytes": [0] * 4}
    peaks = [100 + 10 * at for at in range(1, 5)]
    columns |= {"forward_ns": [5] * 4, "forward_peak_bytes": peaks, "backward_peak_bytes": [one + 100 for one in peaks]}
    columns |= {"again_bytes": [100] * 4, "again_ns": [5] * 4}
    arguments: dict[str, Scalar] = {name: ",".join(map(str, column)) for name, column in columns.items()}
    arguments |= {"through": "loop", "turn_peak_bytes": 150, "back_peak_bytes": 150, "rest_peak_bytes": 100}
    site = Site("blocks", "train.py", line, "Net.forward", {**arguments, "limit_bytes": limit_bytes})
    return example_request("over-checkpointing", text, sites=(site,))


def test_as_many_stay_checkpointed_as_the_measured_blocks_need() -> None:
    # Without checkpoints the peak is at the turn: 150, and 90 more for each of four blocks.
    settings = FIXER.settings(measured(LOOP, 450))
    assert [each["checkpointed"] for each in settings] == ["0-1", "0-2"]
    assert [each["checkpointed"] for each in FIXER.settings(measured(LOOP, 1000))] == ["none"]


@pytest.mark.parametrize("name", ["loop", "flag"])
def test_a_plan_stands_in_the_source_and_changes_no_bit(name: str) -> None:
    asked = replace(measured(PROGRAMS[name], 450), setting={"checkpointed": "0-1"})
    answer = FIXER.rewrite(asked)
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert "use_reentrant=False) if " in patched and " < 2 else block(x" in patched
    before, after = trained(PROGRAMS[name]), trained(patched)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_what_nobody_needs_any_more_goes_with_the_checkpoint() -> None:
    answer = FIXER.rewrite(request(LOOP))
    assert isinstance(answer, Edits)
    assert "from torch.utils.checkpoint import checkpoint_sequential\n" in answer.files["train.py"]
    flag = FIXER.rewrite(request(FLAG))
    assert isinstance(flag, Edits)
    assert "        for i, block in enumerate(self.blocks):\n            x = block(x, 2.0)\n" in flag.files["train.py"]


def test_a_sequence_is_left_with_advice() -> None:
    text = "from torch.utils.checkpoint import checkpoint_sequential\n\ny = checkpoint_sequential(net, 4, x)\n"
    answer = FIXER.rewrite(request(text))
    assert isinstance(answer, Advice)
    assert "train.py:3" in answer.text
