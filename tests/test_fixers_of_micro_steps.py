"""What keeps micro-steps from the other ranks: where their last can be told, and gradients are whole when needed."""

from __future__ import annotations

import pytest
from asking import asked, changed

from diagnose.fixer import Advice, Edits

MICRO_STEPS = """import contextlib
import torch
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model):
        self.model = DistributedDataParallel(model)

    def run_batch(self, batch):
        loss = self.model(batch).mean() / self.every
        loss.backward()
        return loss.detach()

    def run_epoch(self):
        for i, batch in enumerate(self.loader):
            total = self.run_batch(batch)
            if (i + 1) % self.every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
"""


def test_a_micro_step_that_a_method_makes_is_kept_from_the_other_ranks_where_it_is_called() -> None:
    assert changed(MICRO_STEPS, asked("no-sync", "syncing-every-microstep", MICRO_STEPS)) == [
        "-total = self.run_batch(batch)",
        "+with contextlib.nullcontext() if (i + 1) % self.every == 0 else self.model.no_sync():",
        "+total = self.run_batch(batch)",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        return loss.detach()\n", "        self.optimizer.step()\n"),
        (
            "        return loss.detach()\n",
            "        self.finish()\n\n    def finish(self):\n        self.optimizer.step()\n",
        ),
        ("        loss.backward()\n", "        self.optimizer.zero_grad()\n        loss.backward()\n"),
        (
            "        loss.backward()\n",
            "        loss.backward()\n        self.a()\n\n    def a(self):\n        self.b()\n\n"
            "    def b(self):\n        self.optimizer.step()\n",
        ),
        ("        loss.backward()\n", "        if loss.isnan():\n            return loss\n        loss.backward()\n"),
        ("        loss.backward()\n", "        if loss.isfinite():\n            loss.backward()\n"),
        ("        loss.backward()\n", "        loss.backward()\n        clip_grad_norm_(self.model.parameters(), 1)\n"),
        ("        loss.backward()\n", "        loss.backward()\n        self.steps += 1\n        self.every += 1\n"),
        ("            total = ", "            if batch:\n                total = "),
        ("            if (i + 1)", "            clip_grad_norm_(self.model.parameters(), 1)\n            if (i + 1)"),
        ("class Trainer:", "class Other:\n    def run_batch(self, batch):\n        pass\n\n\nclass Trainer:"),
        ("DistributedDataParallel(model)", "model"),
        (
            "    def run_epoch(self):\n",
            "    def again(self):\n        for x in y:\n            self.run_batch(x)\n"
            "            self.optimizer.step()\n\n    def run_epoch(self):\n",
        ),
    ],
)
def test_a_method_that_does_more_or_is_called_in_several_loops_is_left_alone(before: str, after: str) -> None:
    text = MICRO_STEPS.replace(before, after)
    assert text != MICRO_STEPS
    assert not isinstance(asked("no-sync", "syncing-every-microstep", text), Edits)


FLAT_MICRO_STEPS = """import torch
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(net)
for i, batch in enumerate(loader):
    loss = model(batch).mean()
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_turn_that_the_program_skips_whole_does_not_keep_the_ranks_apart() -> None:
    text = FLAT_MICRO_STEPS.replace("    loss.b", "    if loss.isnan():\n        continue\n    loss.b")
    assert isinstance(asked("no-sync", "syncing-every-microstep", text), Edits)


def test_either_of_two_backward_passes_is_one() -> None:
    either = "    if scaler:\n        scaler.scale(loss).backward()\n    else:\n        loss.backward()\n"
    text = FLAT_MICRO_STEPS.replace("    loss.backward()\n", either)
    assert isinstance(asked("no-sync", "syncing-every-microstep", text), Edits)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("    loss.b", "    if loss > 0:\n        loss.b", "without its backward pass"),
        (
            "    if (i",
            "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    if (i",
            "clipped in every turn",
        ),
        ("    if (i + 1)", "    state.steps += 1\n    if state.steps", "`state.steps` changes"),
    ],
)
def test_micro_steps_whose_gradients_others_must_have_by_then_are_advice(before: str, after: str, why: str) -> None:
    answer = asked("no-sync", "syncing-every-microstep", FLAT_MICRO_STEPS.replace(before, after))
    assert isinstance(answer, Advice)
    assert why in answer.text


def test_a_loop_that_updates_in_every_turn_is_no_micro_step_where_a_test_skips_one() -> None:
    text = FLAT_MICRO_STEPS.replace("    if (i + 1) % 4 == 0:", "    if True:").replace(
        "    loss.b", "    if loss > 0:\n        loss.b"
    )
    assert asked("no-sync", "syncing-every-microstep", text) is None


def test_blocks_by_tabs_stay_so_in_a_file_that_has_more_by_spaces() -> None:
    spaces = "def a():\n    x = 1\n\n\ndef b():\n    x = 2\n\n\n"
    tabs = FLAT_MICRO_STEPS.replace("    ", "\t").replace("import torch\n", "import torch\n\n\n" + spaces, 1)
    assert "+with contextlib.nullcontext() if (i + 1) % 4 == 0 else model.no_sync():" in changed(
        tabs, asked("no-sync", "syncing-every-microstep", tabs)
    )
