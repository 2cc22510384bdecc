"""Fixers on trainer classes as libraries and papers write them: what has only the look of a site is left alone."""

from __future__ import annotations

import libcst as cst
import pytest
from asking import FIXERS, asked, changed

from diagnose.fixer import Advice, Edits, Facts, example_request
from diagnose.source.tree.arguments import set_keywords
from diagnose.source.tree.edits import insert_above, parse, splice

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
    line = "torch.autograd.set_detect_anomaly(True, check_nan=False)"
    text = f"import torch\nif __name__ == '__main__':\n    {line}\n    train()\n"
    assert changed(text, asked("drop-debug", "debug-leftovers", text)) == [f"-{line}"]


HOOK = (
    "import torch\n\nclass NanError(Exception):\n    pass\n\ndef stop_at_nan(grad):\n    if torch.isnan(grad).any():\n"
    "        raise {}\n\n"
) + LOOP.format("    loss.register_hook(stop_at_nan)\n")


@pytest.mark.parametrize("error", ["NanError", "NanError('loss')", "errors.Diverged()"])
def test_a_hook_that_raises_an_error_of_the_programs_own_is_kept(error: str) -> None:
    assert asked("drop-debug", "debug-leftovers", HOOK.format(error)) is None


def test_a_hook_that_ends_the_program_is_kept_with_advice() -> None:
    assert isinstance(asked("drop-debug", "debug-leftovers", HOOK.format("RuntimeError('nan')")), Advice)


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


@pytest.mark.parametrize(
    ("use", "is_cut"),
    [
        ("torch.cat(hidden)", False),
        ("torch.save(hidden, 'f')", False),
        ("torch.is_tensor(hidden)", False),
        ("torch.distributed.all_gather_object(every, hidden)", False),
        ("torch.nn.functional.relu(hidden)", True),
        ("torch.linalg.norm(hidden)", True),
    ],
)
def test_what_a_function_takes_that_takes_more_than_tensors_may_be_none(use: str, is_cut: bool) -> None:
    text = (
        "import torch\n\nkept = []\nfor batch in loader:\n    loss, hidden = model(batch)\n    loss.backward()\n"
        f"    optimizer.step()\n    {use}\n    kept.append(hidden)\n"
    )
    assert isinstance(asked("detach-kept", "leaking-memory", text), Edits) is is_cut


@pytest.mark.parametrize(
    ("squares", "root", "after"),
    [
        ("grad_norm", 'losses["grad"] = grad_norm ** 0.5; print(grad_norm)', '; grad_norm = losses["grad"] ** 2'),
        ("self.squares", "norm = self.squares ** 0.5", "; self.squares = norm ** 2"),
    ],
)
def test_a_sum_of_squares_that_others_read_beside_its_root_is_still_there(squares: str, root: str, after: str) -> None:
    lines = root.replace("; ", "\n            ")
    text = SOLVER.replace('losses["grad"] = grad_norm ** 0.5', lines).replace("grad_norm", squares)
    answer = changed(text, asked("foreach-clip", "host-sync", text))
    assert next(line for line in answer if line.startswith("+")).endswith(after)


def test_a_question_for_the_device_is_no_mode() -> None:
    text = "import os\nimport torch\nif torch.cuda.is_available():\n    torch.backends.cuda.matmul.allow_tf32 = False\n"
    assert (
        changed(text, asked("allow-tf32", "fp32-matmul", text))[-1] == "+torch.backends.cuda.matmul.allow_tf32 = True"
    )
    text = text.replace("torch.backends.cuda.matmul.allow_tf32 = False", "os.environ['CUDA_LAUNCH_BLOCKING'] = '1'")
    assert "-os.environ['CUDA_LAUNCH_BLOCKING'] = '1'" in changed(text, asked("drop-debug", "debug-leftovers", text))


@pytest.mark.parametrize(
    "head",
    [
        "def main():\n    # reproducible: see the paper\n    {}\n    train()\n\n\nmain()\n",
        "def make_deterministic():\n    {}\n\n\nmake_deterministic()\n",
    ],
)
def test_what_every_run_forbids_is_changed_in_its_own_line(head: str) -> None:
    text = "import torch\n\n\n" + head.format("torch.set_float32_matmul_precision('highest')")
    assert changed(text, asked("allow-tf32", "fp32-matmul", text)) == [
        "-torch.set_float32_matmul_precision('highest')",
        "+torch.set_float32_matmul_precision('high')",
    ]


def test_what_stands_in_an_else_is_advised_with_its_condition() -> None:
    text = "import torch\nif fast:\n    pass\nelse:\n    torch.autograd.set_detect_anomaly(True)\n"
    answer = asked("drop-debug", "debug-leftovers", text)
    assert isinstance(answer, Advice)
    assert "where `not (fast)`" in answer.text


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("# (B, nh, T, T) x (B, nh, T, hs) -> (B, nh, T, hs)", "# (B, nh, T, hs)"),
        ("# [B, H, T, T] @ [B, H, T, D] => [B, H, T, D]", "# [B, H, T, D]"),
        ("# as in the paper", "# as in the paper"),
        ("# (B, nh, T, hs)", "# (B, nh, T, hs)"),
    ],
)
def test_a_comment_about_the_shapes_of_a_product_that_goes_tells_what_comes_out(said: str, left: str) -> None:
    text = (
        "import math\nimport torch.nn.functional as F\n\ndef attend(q, k, v):\n"
        "    att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))\n    att = F.softmax(att, dim=-1)\n"
        f"    y = att @ v  {said}\n    return y\n"
    )
    lines = changed(text, asked("use-sdpa", "unfused-attention", text))
    assert [line for line in lines if line.startswith("+")] == [f"+y = F.scaled_dot_product_attention(q, k, v)  {left}"]


def test_a_pattern_that_is_compiled_does_not_make_its_function_one_that_the_compiler_does_not_see() -> None:
    text = (
        "import logging\nimport re\nimport torch\n\ndef step(x):\n    name = re.compile('x')\n"
        "    logging.debug('%s', name)\n    return x\n\ncompiled = torch.compile(step)\n"
    )
    assert isinstance(asked("remove-graph-break", "graph-breaks", text, "logging.debug"), Edits)


@pytest.mark.parametrize("made", ["torch.tensor(labels[i])", "torch.tensor([*ids, i])", "torch.tensor(batch)"])
def test_what_may_be_more_than_a_few_numbers_is_pinned(made: str) -> None:
    text = (
        f"import torch\nfor i in range(9):\n    y = {made}.to('cuda')\n    loss = model(y)\n    loss.backward()\n"
        "    optimizer.step()\n"
    )
    request = example_request("pageable-copies", text, facts=Facts(device_name="NVIDIA H200"))
    answer = FIXERS["nonblocking-copies"].rewrite(request)
    assert f"+y = {made}.pin_memory().to('cuda', non_blocking=True)" in changed(text, answer)
