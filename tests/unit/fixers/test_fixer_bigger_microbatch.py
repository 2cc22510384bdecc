"""Fewer and larger micro-batches: each step of the optimizer does the same, up to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.fixer import Advice, Edits, Gate, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["bigger-microbatch"]

GLOBALS = """
import torch
torch.manual_seed(0)
gradient_accumulation_steps = 2 * 4 # used to simulate larger batch sizes
batch_size = 3 # if gradient_accumulation_steps > 1, this is the micro-batch size
data = torch.randn(4096, 6)
samples_per_iter = gradient_accumulation_steps * batch_size
cursor = 0
def get_batch():
    global cursor
    cursor += batch_size
    return data[cursor - batch_size:cursor]
model = torch.nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
X = get_batch()
for iteration in range(5):
    for micro_step in range(gradient_accumulation_steps):
        loss = model(X).square().mean()
        loss = loss / gradient_accumulation_steps # scale the loss to account for gradient accumulation
        X = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

EPOCHS = """
import argparse
import torch
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args([])
    torch.manual_seed(0)
    loader = DataLoader(torch.randn(64, 6), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for i, x in enumerate(loader):
            loss = model(x).square().mean() / args.accumulate
            loss.backward()
            if (i + 1) % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return model


model = main()
"""

METHOD = """
import torch


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.accumulate = 4
        self.micro_batch = 2
        self.data = torch.randn(64, 6)
        self.model = torch.nn.Linear(6, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        batches = iter(self.data.split(self.micro_batch))
        for step in range(3):
            for _ in range(self.accumulate):
                loss = self.model(next(batches)).square().mean()
                (loss / self.accumulate).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


trainer = Trainer()
trainer.fit()
model = trainer.model
"""


def trained(text: str) -> list[float]:
    names: dict[str, object] = {}
    exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


@pytest.mark.parametrize(
    ("text", "gate"), [(GLOBALS, Gate.ROUNDING), (EPOCHS, Gate.TRAINING)], ids=["globals", "epochs"]
)
@pytest.mark.parametrize("factor", [2, 4])
def test_a_step_of_the_optimizer_does_the_same(text: str, gate: Gate, factor: int) -> None:
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": factor}))
    assert isinstance(answer, Edits), answer
    assert answer.gate is gate
    assert trained(answer.files["train.py"]) == pytest.approx(trained(text), rel=1e-5, abs=1e-7)


def test_the_numbers_are_changed_where_they_are_set() -> None:
    answer = FIXER.rewrite(example_request("small-batch", GLOBALS, setting={"factor": 4}))
    assert isinstance(answer, Edits)
    changed = GLOBALS.replace("steps = 2 * 4 #", "steps = 2 #").replace("batch_size = 3 #", "batch_size = 12 #")
    assert answer.files["train.py"] == changed
    assert answer.summary == "compute 12 samples at once, in 2 micro-steps"


def test_the_factors_are_those_that_divide_the_micro_steps() -> None:
    assert FIXER.settings(example_request("small-batch", GLOBALS)) == [{"factor": 2}, {"factor": 4}, {"factor": 8}]
    assert FIXER.settings(example_request("small-batch", EPOCHS)) == [{"factor": 2}, {"factor": 4}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (METHOD, "not found"),
        (GLOBALS.replace("Linear(6, 2)", "Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))"), "BatchNorm"),
        (EPOCHS.replace("    return model", "            if i > 99:\n                break\n    return model"), "ends"),
        (GLOBALS.replace(" / gradient_accumulation_steps", " * 1"), "changes the training"),
        ("for x in loader:\n    loss = model(x)\n    loss.backward()\n    optimizer.step()\n", "learning rate"),
    ],
)  # fmt: skip
def test_what_is_not_certain_is_advice(text: str, why: str) -> None:
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Advice)
    assert why in answer.text


def test_what_the_command_line_sets_is_not_changed_behind_its_back() -> None:
    request = example_request("small-batch", GLOBALS, setting={"factor": 2})
    for words in (["--batch_size=4"], ["--gradient_accumulation_steps=8"]):
        answer = FIXER.rewrite(replace(request, words=words))
        assert isinstance(answer, Advice), words
    executing = replace(request, sources={"train.py": GLOBALS + "exec(open('configurator.py').read())\n"})
    assert isinstance(FIXER.rewrite(replace(executing, words=["config/small.py"])), Advice)
    assert isinstance(FIXER.rewrite(replace(executing, words=["train.py", "--log_interval=1"])), Edits)


EXECUTING = GLOBALS.replace("data = torch", "exec(open('configurator.py').read())\ndata = torch")


def test_what_an_executed_file_of_settings_sets_is_set_there() -> None:
    config = "# 12 * 5 * 8 samples\nbatch_size = 12\nblock_size = 1024\ngradient_accumulation_steps = 5 * 8\n"
    sources = {"train.py": EXECUTING, "config/train_gpt2.py": config}
    request = replace(
        example_request("small-batch", EXECUTING, setting={"factor": 2}),
        sources=sources,
        words=["train.py", "config/train_gpt2.py"],
    )
    answer = FIXER.rewrite(request)
    assert isinstance(answer, Edits)
    assert answer.files == {
        "config/train_gpt2.py": config.replace("batch_size = 12", "batch_size = 24").replace("= 5 * 8", "= 20")
    }


def test_of_several_files_of_settings_the_last_that_sets_a_number_decides() -> None:
    sources = {"train.py": EXECUTING, "a.py": "batch_size = 2\n", "b.py": "batch_size = 5\n", "c.py": "lr = 1\n"}
    request = example_request("small-batch", EXECUTING, setting={"factor": 4})
    answer = FIXER.rewrite(replace(request, sources=sources, words=["a.py", "b.py", "c.py"]))
    assert isinstance(answer, Edits)
    assert answer.files["b.py"] == "batch_size = 20\n"
    assert "gradient_accumulation_steps = 2 # used" in answer.files["train.py"]
    assert set(answer.files) == {"train.py", "b.py"}


def test_the_word_of_the_command_line_that_decides_is_named() -> None:
    request = example_request("small-batch", EXECUTING, setting={"factor": 2})
    answer = FIXER.rewrite(replace(request, words=["train.py", "--batch_size=4"]))
    assert isinstance(answer, Advice) and "`--batch_size=4`" in answer.text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model(X).square()", "model(X + torch.randn_like(X)).square()"),
        ("model(X).square()", "model(X + torch.randn(X.shape)).square()"),
        ("model(X).square()", "model(X, torch.randint(0, 9, (batch_size,), device=device)).square()"),
        ("model = torch.nn.Linear(6, 2)", "model = torch.nn.Sequential(torch.nn.Linear(6, 2), torch.nn.Dropout(0.1))"),
        ("model = torch.nn.Linear(6, 2)", "model = torch.nn.Sequential(torch.nn.Linear(6, 2), torch.nn.Dropout())"),
        ("model(X).square()", "torch.nn.functional.dropout(model(X), training=True).square()"),
        ("model(X).square()", "F.dropout(X, training=model.training).square()"),
        ("model = torch.nn.Linear(6, 2)", "model = torch.nn.TransformerEncoderLayer(6, 2)"),
        (
            "model = torch.nn.Linear(6, 2)",
            "class Noisy(torch.nn.Linear):\n    def forward(self, x):\n"
            "        return super().forward(x) + torch.randn(len(x), 2)\nmodel = Noisy(6, 2)",
        ),
    ],
)
def test_numbers_drawn_for_each_sample_make_it_a_change_of_the_training(before: str, after: str) -> None:
    text = GLOBALS.replace(before, after)
    assert text != GLOBALS
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits) and answer.gate is Gate.TRAINING


@pytest.mark.parametrize(
    "line", ["dropout = 0.0", "model = torch.nn.Dropout(p=0.0)", "X = self.dropout(X)", "ix = torch.randint(9, (4,))"]
)
def test_what_draws_nothing_or_in_the_same_order_stays_rounding(line: str) -> None:
    text = GLOBALS.replace("    cursor += batch_size\n", f"    cursor += batch_size\n    {line}\n")
    assert text != GLOBALS
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits) and answer.gate is Gate.ROUNDING


def test_a_loss_that_may_ignore_targets_makes_it_a_change_of_the_training() -> None:
    loss = "torch.nn.functional.cross_entropy(model(X), Y, ignore_index=-1)"
    text = GLOBALS.replace("model(X).square().mean()", loss)
    assert text != GLOBALS
    answer = FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2}))
    assert isinstance(answer, Edits), answer
    assert answer.gate is Gate.TRAINING
    assert "batch_size = 6 #" in answer.files["train.py"]


@pytest.mark.parametrize(
    "config",
    [
        "batch_size: int = 12\n",
        "batch_size, block_size = 12, 64\n",
        "batch_size = 12\nbatch_size *= 2\n",
        "import os\nbatch_size = 12\nif 'BIG' in os.environ:\n    batch_size = 24\n",
        "globals()['batch_size'] = 12\n",
        "from base import *\n",
        "exec(open('config/base.py').read())\n",
        "def small():\n    batch_size = 12\n",
        "batch_size = n = 12\n",
        "batch_size = = 12\n",
    ],
)
def test_a_file_of_settings_that_sets_a_number_in_another_way_is_left_alone(config: str) -> None:
    request = example_request("small-batch", EXECUTING, setting={"factor": 2})
    sources = {"train.py": EXECUTING, "config/a.py": config, "config/base.py": "batch_size = 3\n"}
    assert isinstance(FIXER.rewrite(replace(request, sources=sources, words=["train.py", "config/a.py"])), Advice)


def test_of_two_files_by_one_name_none_is_taken_for_the_settings() -> None:
    request = example_request("small-batch", EXECUTING, setting={"factor": 2})
    sources = {"train.py": EXECUTING, "a/small.py": "batch_size = 2\n", "b/small.py": "batch_size = 5\n"}
    assert isinstance(FIXER.rewrite(replace(request, sources=sources, words=["train.py", "small.py"])), Advice)


@pytest.mark.parametrize(
    "script",
    [
        EXECUTING.replace("configurator.py", "config/a.py"),  # executed by its name
        EXECUTING.replace("configurator.py", "settings.txt"),
        EXECUTING.replace("\nbatch_size = 3", "\n").replace("\ndata = ", "\nbatch_size = 3\ndata = "),  # set after it
    ],
)
def test_a_script_that_may_set_a_number_behind_its_own_line_is_left_alone(script: str) -> None:
    assert script != EXECUTING
    request = example_request("small-batch", script, setting={"factor": 2})
    sources = {"train.py": script, "config/a.py": "batch_size = 12\n"}
    assert isinstance(FIXER.rewrite(replace(request, sources=sources, words=["train.py"])), Advice)


@pytest.mark.parametrize("line", ["batch_size: int = 6", "batch_size, width = 6, 7", "batch_size *= 2"])
def test_a_number_that_is_set_again_in_another_way_is_left_alone(line: str) -> None:
    text = GLOBALS.replace("data = torch", f"{line}\ndata = torch")
    assert isinstance(FIXER.rewrite(example_request("small-batch", text, setting={"factor": 2})), Advice)


def test_options_that_are_shown_as_a_whole_keep_the_size_of_batches() -> None:
    answer = FIXER.rewrite(example_request("small-batch", EPOCHS, setting={"factor": 2}))
    assert isinstance(answer, Edits)
    shown = EPOCHS.replace("    torch.manual_seed(0)\n", "    print(args)\n    torch.manual_seed(0)\n")
    assert isinstance(FIXER.rewrite(example_request("small-batch", shown, setting={"factor": 2})), Advice)


def test_a_number_of_micro_steps_that_is_written_more_than_once_is_left_alone() -> None:
    text = GLOBALS.replace("gradient_accumulation_steps = 2 * 4 #", "#").replace("gradient_accumulation_steps", "8")
    answer = FIXER.rewrite(example_request("low-occupancy", text))
    assert isinstance(answer, Advice)
    assert "more than once" in answer.text
