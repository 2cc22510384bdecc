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


IN_PARTS = """import contextlib
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)
for x, y in loader:
    parts = [x[:8], x[8:]]
    optimizer.zero_grad()
    for part in x.chunk(4):
        loss = model(part).mean() / 4
        loss.backward()
    optimizer.step()
"""
CUT = "for part in x.chunk(4):"


@pytest.mark.parametrize(
    ("loop", "becomes"),
    [
        (
            CUT,
            ["micro_batches = x.chunk(4)", "for micro_step, part in enumerate(micro_batches):"],
        ),
        (
            "for part, label in zip(x.chunk(4), y.split(8)):",
            [
                "micro_batches = list(zip(x.chunk(4), y.split(8)))",
                "for micro_step, (part, label) in enumerate(micro_batches):",
            ],
        ),
        (
            "for (part, weight), label in zip(parts, y.split(8)):",
            [
                "micro_batches = list(zip(parts, y.split(8)))",
                "for micro_step, ((part, weight), label) in enumerate(micro_batches):",
            ],
        ),
        ("for part in parts:", ["for micro_step, part in enumerate(parts):"]),
    ],
)
def test_the_last_part_of_a_batch_is_the_last_micro_step(loop: str, becomes: list[str]) -> None:
    before = IN_PARTS.replace(CUT, loop)
    made = "micro_batches" if len(becomes) == 2 else "parts"
    assert changed(before, asked("no-sync", "syncing-every-microstep", before)) == [
        f"-{loop}",
        "-loss = model(part).mean() / 4",
        "-loss.backward()",
        *(f"+{line}" for line in becomes),
        f"+with contextlib.nullcontext() if micro_step == len({made}) - 1 else model.no_sync():",
        "+loss = model(part).mean() / 4",
        "+loss.backward()",
    ]


@pytest.mark.parametrize("parts", ["(each for each in x)", "zip(x, y)", "[x]\n    parts = map(half, parts)",
                                   "[x]\n    parts, count = cut(x), 2", "[x]\n    parts: object = cut(x)"])  # fmt: skip
def test_what_has_no_length_is_not_asked_for_one(parts: str) -> None:
    before = IN_PARTS.replace(CUT, "for part in parts:").replace("[x[:8], x[8:]]", parts)
    answer = asked("no-sync", "syncing-every-microstep", before)
    assert isinstance(answer, Advice)
    assert "was not found" in answer.text


FLAGGED = """import contextlib
from torch.nn.parallel import DistributedDataParallel


def norm(model):
    return sum(p.grad.norm() for p in model.parameters())


model = DistributedDataParallel(model)
for i, x in enumerate(loader):
    last = (i + 1) % 4 == 0
    model(x).mean().backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_condition_with_a_name_is_asked_for_by_it() -> None:
    assert changed(FLAGGED, asked("no-sync", "syncing-every-microstep", FLAGGED)) == [
        "-model(x).mean().backward()",
        "+with contextlib.nullcontext() if last else model.no_sync():",
        "+model(x).mean().backward()",
    ]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("    last = (i + 1) % 4 == 0\n    model(x).mean().backward()\n",
         "    model(x).mean().backward()\n    last = (i + 1) % 4 == 0\n", "after the forward pass"),
        ("    if last:", "    last |= done(x)\n    if last:", "was not found"),
        ("    if last:", "    last, shown = last and done(x), True\n    if last:", "was not found"),
        ("    if last:", "    last: bool = last and done(x)\n    if last:", "was not found"),
        ("    if last:", "    for last in done(x):\n        pass\n    if last:", "was not found"),
        ("    if last:", "    show(model.module.weight.grad)\n    if last:", "looks at gradients"),
        ("    last = ", "    show(model.module.weight.grad)\n    last = ", "looks at gradients"),
        ("    if last:", "    show(norm(model))\n    if last:", "looks at gradients"),
    ],
)  # fmt: skip
def test_a_name_that_is_not_known_or_gradients_that_are_looked_at_are_advice(before: str, after: str, why: str) -> None:
    answer = asked("no-sync", "syncing-every-microstep", FLAGGED.replace(before, after))
    assert isinstance(answer, Advice)
    assert why in answer.text


@pytest.mark.parametrize("loop", [CUT, "for part in range(4):", "for part in parts:"])
def test_gradients_that_are_clipped_with_every_part_of_a_batch_are_advice(loop: str) -> None:
    clips = "        loss.backward()\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    text = IN_PARTS.replace(CUT, loop)
    assert isinstance(asked("no-sync", "syncing-every-microstep", text), Edits)
    answer = asked("no-sync", "syncing-every-microstep", text.replace("        loss.backward()\n", clips))
    assert isinstance(answer, Advice)
    assert "clips them" in answer.text


@pytest.mark.parametrize("harmless", ["p.grad = None", "assert p.grad is None", "torch.autograd.grad(p, x)"])
def test_gradients_that_are_let_go_are_not_looked_at(harmless: str) -> None:
    text = FLAGGED.replace("    last = ", f"    for p in late(i):\n        {harmless}\n    last = ")
    assert isinstance(asked("no-sync", "syncing-every-microstep", text), Edits)
