"""Where garbage is collected instead: once before all epochs, and at the end of some of the turns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asking import FIXERS, asked, changed

from diagnose.fixer import Edits, example_request

EPOCHS = """import torch


class Solver:
   def train(self):
      self.model.train()
      for epoch in range(3):
         # one pass over the data
         self.run_epoch(epoch)
         self.run_epoch(epoch, train=False)

   def run_epoch(self, epoch, train=True):
      for i, x in enumerate(self.loader):
         loss = self.model(x).mean()
         loss.backward()
         self.optimizer.step()
"""


def test_what_is_alive_is_set_aside_once_before_all_epochs() -> None:
    answer = asked("gc-schedule", "gc-pause", EPOCHS, every=100)
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "      gc.disable()\n      for epoch in range(3):\n" in after
    assert after.count("gc.freeze()") == 1
    assert "         if i % 100 == 0:\n            gc.collect()\n" in after, "in the steps of the file's indentation"


@pytest.mark.parametrize("loop", ["for _ in range(steps):", "for start in range(0, count, size):"])
def test_a_variable_that_does_not_count_step_by_step_schedules_nothing(loop: str) -> None:
    text = EPOCHS.replace("for i, x in enumerate(self.loader):", loop).replace("(x)", "(self.batch())")
    answer = asked("gc-schedule", "gc-pause", text, every=100)
    assert [line for line in changed(text, answer) if "gc" in line and "import" not in line] == [
        "+gc.collect()",
        "+gc.freeze()  # what is alive now stays: collections need not walk over it",
    ]


def test_the_mode_of_a_model_is_no_call_of_a_function_of_that_name() -> None:
    text = (
        "import torch\n\ndef train(loader):\n    for x in loader:\n        loss = model(x).mean()\n"
        "        loss.backward()\n        optimizer.step()\n\nfor part in parts:\n    model.train()\n"
    )
    answer = asked("gc-schedule", "gc-pause", text)
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "not walk over it\n    for x in loader:\n" in after


def test_a_deeper_first_block_does_not_set_the_indentation_of_new_lines() -> None:
    text = "import torch\nif odd:\n   x = 1\n" + EPOCHS.replace("   ", "    ")
    answer = asked("gc-schedule", "gc-pause", text, every=100)
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "            if i % 100 == 0:\n                gc.collect()\n" in after


EPOCH = (
    "import torch\n\n\ndef train(loader):\n    for i, x in enumerate(loader):\n        model(x).sum().backward()\n"
    "        optimizer.step()\n"
)


def test_a_turn_that_ends_right_above_the_loop_of_epochs_keeps_its_end() -> None:
    text = EPOCH + "for epoch in range(3):\n    train(loader)\n"
    assert changed(text, asked("gc-schedule", "gc-pause", text, every=100))[-3:] == [
        "+gc.collect()",
        "+gc.freeze()  # what is alive now stays: collections need not walk over it",
        "+gc.disable()",
    ]


def test_a_function_of_the_same_name_in_another_file_is_another() -> None:
    other = "def train():\n    pass\n\n\nfor trial in range(3):\n    train()\n"
    request = replace(example_request("gc-pause", EPOCH), sources={"train.py": EPOCH, "other.py": other})
    answer = FIXERS["gc-schedule"].rewrite(request)
    assert isinstance(answer, Edits)
    assert list(answer.files) == ["train.py"]


def test_a_counter_in_the_loop_counts_where_its_own_variable_is_not_read() -> None:
    text = EPOCH.replace("i, x", "_, x") + "        step += 1\n"
    assert "+if step % 100 == 0:" in changed(text, asked("gc-schedule", "gc-pause", text, every=100))


def test_a_count_that_each_log_sets_back_schedules_nothing_but_one_that_goes_on_does() -> None:
    loop = "for x in self.loader:\n         since_log += 1\n         steps += 1\n"
    loop += "         if since_log == 50:\n            since_log = 0\n"
    text = EPOCHS.replace("for i, x in enumerate(self.loader):\n", loop)
    answer = asked("gc-schedule", "gc-pause", text, every=100)
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "         if steps % 100 == 0:\n            gc.collect()\n" in after
    assert "since_log % 100" not in after


HANDLED = """import gc
import torch

for attempt in range(3):
    try:
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
    except torch.OutOfMemoryError:
        gc.collect()
        size //= 2
"""


def test_a_collection_that_makes_room_for_another_attempt_stays() -> None:
    lines = range(1, HANDLED.count("\n") + 1)
    answer = FIXERS["gc-schedule"].rewrite(example_request("gc-pause", HANDLED, setting={"every": 0}, lines=lines))
    assert isinstance(answer, Edits)
    assert "    except torch.OutOfMemoryError:\n        gc.collect()\n" in answer.files["train.py"]
