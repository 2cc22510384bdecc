"""Fixers on trainer classes as libraries and papers write them: what has only the look of a site is left alone."""

from __future__ import annotations

import difflib
from dataclasses import replace

import libcst as cst
import pytest

from diagnose.fixer import (
    Advice,
    Answer,
    Edits,
    Request,
    Site,
    example_request,
    insert_above,
    parse,
    set_keywords,
    splice,
)
from diagnose.model import Place, Scalar
from diagnose.plugins import load

FIXERS = load().fixers


def asked(fixer: str, rule: str, text: str, at: str = "", sites: tuple[Site, ...] = (), **setting: Scalar) -> Answer:
    """The answer of a fixer where a finding names the line with some code."""
    request: Request = example_request(rule, text, sites=sites, setting=setting)
    (path,) = request.sources
    lines = [number for number, line in enumerate(text.splitlines(), 1) if at and at in line]
    finding = replace(request.finding, where=tuple(Place(path, line) for line in lines))
    return FIXERS[fixer].rewrite(replace(request, finding=finding))


def changed(text: str, answer: Answer) -> list[str]:
    """The lines that go and come, without their indentation."""
    assert isinstance(answer, Edits), answer
    (after,) = answer.files.values()
    compile(after, "edited", "exec")
    compared = list(difflib.unified_diff(text.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    return [line[0] + line[1:].strip() for line in compared if not line.startswith("@@") and line[1:].strip()]


SOLVER = """import torch


class Solver:
    def epoch(self):
        losses = {}
        for x, y in self.loader:
            loss = self.criterion(self.model(x), y)
            losses["loss"] = loss
            loss.backward()
            grad_norm = 0
            for p in self.model.parameters():
                if p.grad is not None:
                    grad_norm += p.grad.data.norm() ** 2
            losses["grad"] = grad_norm ** 0.5
            self.optimizer.step()
            self.metrics.update(losses)
"""


@pytest.mark.parametrize(
    ("root", "stored", "read"),
    [
        ('losses["grad"] = grad_norm ** 0.5', 'losses["grad"]', ""),
        ("self.norm = grad_norm ** 0.5", "self.norm", ""),
        ("self.norm = math.sqrt(grad_norm)", "self.norm", ".item()"),
    ],
)
def test_a_norm_that_an_entry_or_an_attribute_takes_is_still_given_to_it(root: str, stored: str, read: str) -> None:
    text = SOLVER.replace('losses["grad"] = grad_norm ** 0.5', root)
    gradients = "[p.grad for p in self.model.parameters() if p.grad is not None]"
    lines = changed(text, asked("foreach-clip", "host-sync", text))
    assert [line for line in lines if line.startswith("+")] == [
        f"+{stored} = torch.nn.utils.get_total_norm({gradients}){read}"
    ]


def test_a_sum_of_squares_that_an_attribute_takes_is_still_given_to_it() -> None:
    text = SOLVER.replace("grad_norm +=", "self.squares +=").replace("grad_norm = 0", "self.squares = 0")
    text = text.replace(
        'losses["grad"] = grad_norm ** 0.5', "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)"
    )
    lines = changed(text, asked("foreach-clip", "host-sync", text))
    assert lines[-1] == "+self.squares = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1) ** 2"


def test_clipping_that_is_spelt_out_for_another_kind_of_device_stays_so() -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0{})"
    text = (
        f"import torch\nif device.type == 'npu':\n    {clip.format(', foreach=False')}\nelse:\n    {clip.format('')}\n"
    )
    assert asked("foreach-clip", "host-sync", text) is None


@pytest.mark.parametrize(
    ("outcome", "kept", "edit"),
    [
        ("loss, count = self.model(batch)", "seen += count", None),
        ("loss, hidden = self.model(batch)", "kept.append(hidden)", None),
        ("loss, hidden = self.model(batch)", "hidden.mean(); kept.append(hidden)", "kept.append(hidden.detach())"),
        ("loss, hidden = self.model(batch)", "torch.tanh(hidden); kept.append(hidden)", "kept.append(hidden.detach())"),
        ("loss, count = self.model(batch)", "seen += loss", "seen += loss.detach()"),
    ],
)
def test_only_what_is_surely_a_tensor_is_cut_from_its_graph(outcome: str, kept: str, edit: str | None) -> None:
    text = (
        "import torch\n\nclass Trainer:\n    def fit(self, loader):\n        kept, seen = [], 0\n"
        f"        for batch in loader:\n            {outcome}\n            loss.backward()\n"
        f"            self.optimizer.step()\n            {kept}\n        return kept, seen\n"
    )
    answer = asked("detach-kept", "leaking-memory", text)
    if edit is None:
        assert answer is None
    else:
        (after,) = [line for line in changed(text, answer) if line.startswith("+")]
        assert after.endswith(edit)


BUILT_LATE = """import torch


class Trainer:
    def __init__(self, args):
        self.model = check_file(args.model)

    def setup(self):
        source = self.model
        self.model = self.get_model(source)
        self.model = self.model.to(self.device)

    def train(self):
        for batch in self.loader:
            loss = self.model(batch)
            loss.backward()
            self.optimizer.step()
"""


@pytest.mark.parametrize("first", ["None", "None  # type: torch.nn.Module"])
def test_a_model_that_is_none_at_first_is_compiled_where_it_is_built(first: str) -> None:
    text = BUILT_LATE.replace("check_file(args.model)", first).replace("self.get_model(source)", "Net()")
    answer = asked("compile-model", "launch-bound", text, compile="whole")
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "self.model = self.model.to(self.device)\n        self.model.compile()\n" in after


def test_an_attribute_that_may_be_the_name_of_a_file_at_first_is_not_compiled() -> None:
    assert isinstance(asked("compile-model", "launch-bound", BUILT_LATE, compile="whole"), Advice)


@pytest.mark.parametrize("built", ["build_model(args)", "Net(args)", "args.model"])
def test_a_model_that_a_later_method_only_wraps_is_compiled_where_it_is_built(built: str) -> None:
    text = BUILT_LATE.replace("check_file(args.model)", built).replace("self.get_model(source)", "Wrapped(self.model)")
    answer = asked("compile-model", "launch-bound", text, compile="whole")
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert f"self.model = {built}\n        self.model.compile()\n" in after


LOOP = "for x in loader:\n    loss = model(x).mean()\n{}    loss.backward()\n    optimizer.step()\n"


@pytest.mark.parametrize(
    ("head", "advised"),
    [
        ("if args.debug:\n    torch.autograd.set_detect_anomaly(True)\n", "args.debug"),
        ("if cfg.sync:\n    os.environ['CUDA_LAUNCH_BLOCKING'] = '1'\n", "cfg.sync"),
        ("if cfg.sync:\n    os.environ.setdefault('CUDA_LAUNCH_BLOCKING', '1')\n", "cfg.sync"),
    ],
)
def test_what_is_switched_on_under_a_condition_is_left_to_it(head: str, advised: str) -> None:
    text = "import os\nimport torch\n" + head + LOOP.format("")
    answer = asked("drop-debug", "debug-leftovers", text)
    assert isinstance(answer, Advice)
    assert f"`{advised}`" in answer.text


def test_a_main_guard_is_no_condition() -> None:
    text = "import torch\nif __name__ == '__main__':\n    torch.autograd.set_detect_anomaly(True)\n    train()\n"
    assert changed(text, asked("drop-debug", "debug-leftovers", text)) == ["-torch.autograd.set_detect_anomaly(True)"]


HOOK = (
    "import torch\n\nclass NanError(Exception):\n    pass\n\ndef stop_at_nan(grad):\n    if torch.isnan(grad).any():\n"
    "        raise {}\n\n"
) + LOOP.format("    loss.register_hook(stop_at_nan)\n")


@pytest.mark.parametrize("error", ["NanError", "NanError('loss')", "errors.Diverged()"])
def test_a_hook_that_raises_an_error_of_the_programs_own_is_kept(error: str) -> None:
    assert asked("drop-debug", "debug-leftovers", HOOK.format(error)) is None


def test_a_hook_that_only_ends_the_program_goes() -> None:
    text = HOOK.format("RuntimeError('nan')")
    assert changed(text, asked("drop-debug", "debug-leftovers", text)) == ["-loss.register_hook(stop_at_nan)"]


@pytest.mark.parametrize(
    "mode",
    [
        "def make_deterministic():\n    torch.use_deterministic_algorithms(True)\n"
        "    torch.backends.cuda.matmul.allow_tf32 = False\n",
        "if args.exact:\n    torch.backends.cuda.matmul.allow_tf32 = False\n",
        "if args.exact:\n    torch.set_float32_matmul_precision('highest')\n",
    ],
)
def test_tf32_stays_forbidden_in_a_mode_that_forbids_it(mode: str) -> None:
    text = "import torch\n\n" + mode + LOOP.format("")
    lines = changed(text, asked("allow-tf32", "fp32-matmul", text))
    assert lines == ['+torch.set_float32_matmul_precision("high")']


@pytest.mark.parametrize("own", ["deepcopy(model).to(memory_format={})", "model.to(memory_format={})"])
def test_a_format_is_not_turned_where_the_program_knows_both(own: str) -> None:
    text = (
        "import torch\nfrom copy import deepcopy\nmodel = Net()\nif args.channels_last:\n"
        "    model = model.to(memory_format=torch.channels_last)\n"
        f"saved = {own.format('torch.contiguous_format')}\n" + LOOP.format("")
    )
    assert asked("channels-last", "conv-heuristics", text) is None


def test_the_format_of_a_copy_that_is_written_is_not_turned() -> None:
    text = (
        "import torch\nfrom copy import deepcopy\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.conv = torch.nn.Conv2d(3, 8, 3)\n\n    def forward(self, x):\n"
        "        return self.conv(x)\n\nmodel = Net()\n" + LOOP.format("") + "saved = deepcopy(model).to("
        "memory_format=torch.contiguous_format)\n"
    )
    lines = changed(text, asked("channels-last", "conv-heuristics", text))
    assert lines == ["+model.to(memory_format=torch.channels_last)"]


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


ENGINE = """import torch


class Scaler:
    def __call__(self, loss, optimizer, update=True):
        self.scaler.scale(loss).backward()
        if update:
            self.scaler.step(optimizer)


def train_one_epoch(model, loader, optimizer, loss_scaler):
    for i, x in enumerate(loader):
        loss = model(x).mean()
        loss_scaler(loss, optimizer)
        meter(loss)


model = Net()
model.to(device)
scale_loss = Scaler()
{}
for epoch in range(3):
    train_one_epoch(model, loader, optimizer, loss_scaler)
"""


@pytest.mark.parametrize("made", ["loss_scaler = Scaler()", "loss_scaler: Scaler = Scaler()"])
def test_a_loss_that_is_handed_to_an_object_which_is_called_is_followed(made: str) -> None:
    text = ENGINE.format(made)
    answer = asked("compile-model", "launch-bound", text, compile="whole")
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "model.to(device)\nmodel.compile()\n" in after, "after what is done to the model as it is built"
    scheduled = asked("gc-schedule", "gc-pause", text, every=100)
    assert "+if i % 100 == 0:" in changed(text, scheduled)


def test_an_object_that_is_not_of_the_class_makes_no_step() -> None:
    text = ENGINE.format("loss_scaler = Meter()")
    assert isinstance(asked("compile-model", "launch-bound", text, compile="whole"), Advice)


def test_an_argument_below_one_with_a_line_of_its_own_gets_one_too() -> None:
    text = "loader = DataLoader(\n    dataset, sampler=sampler,\n    drop_last=True,\n)\n"
    source = parse(text)
    assert source is not None
    (call,) = source.every(cst.Call)
    edited = splice(text, set_keywords(source, call, {"pin_memory": "True"}))
    assert edited == text.replace("drop_last=True,\n", "drop_last=True,\n    pin_memory=True,\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("above", "after"),
    [
        ("# train\n# for long\nfor x in y:\n    pass\n", "start()\n# train\n# for long\nfor x in y:\n    pass\n"),
        ("x = 1  # one\nfor x in y:\n    pass\n", "x = 1  # one\nstart()\nfor x in y:\n    pass\n"),
        ("# apart\n\nfor x in y:\n    pass\n", "# apart\n\nstart()\nfor x in y:\n    pass\n"),
    ],
)
def test_new_lines_stand_above_the_comment_that_heads_a_statement(above: str, after: str, newline: str) -> None:
    text = f"# a licence\nimport torch\n\n{above}".replace("\n", newline)
    source = parse(text)
    assert source is not None
    (loop,) = source.every(cst.For)
    edited = splice(text, [insert_above(source, loop, ["start()"])])
    assert edited == f"# a licence\nimport torch\n\n{after}".replace("\n", newline)


def test_the_comment_at_the_head_of_a_file_stays_there() -> None:
    source = parse("# a licence\nimport torch\n")
    assert source is not None
    (line,) = source.module.body
    assert splice(source.text, [insert_above(source, line, ["import gc"])]) == "# a licence\nimport gc\nimport torch\n"


def test_a_comment_that_heads_the_first_statement_of_a_turn_stays_with_it() -> None:
    text = (
        "import torch\n\n# all batches\nfor i, x in enumerate(loader):\n    # forward\n    loss = model(x).mean()\n"
        "    loss.backward()\n    if i % 2:\n        continue\n    optimizer.step()\n"
    )
    answer = asked("gc-schedule", "gc-pause", text, every=100)
    assert isinstance(answer, Edits)
    (after,) = answer.files.values()
    assert "gc.disable()\n# all batches\nfor i, x" in after
    assert "        gc.collect()\n    # forward\n    loss = " in after


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
