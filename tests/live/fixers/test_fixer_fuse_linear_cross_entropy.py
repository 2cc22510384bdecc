"""fuse-linear-cross-entropy on the output layers of models: the same losses and gradients, and no logits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loss_programs import FIXER, HEAD, IN_STEP, NANO, PAIR, STEPS, assert_fixed_alike, fixed
from rewriting import FIXERS, imported
from watching import LIMIT_S

from diagnose.fixer import Advice, Edits, Request, example_request

LECTURE = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(19, 8)
        self.blocks = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.lm_head = nn.Linear(8, 19)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.table(idx) + torch.arange(T).view(1, T, 1)
        x = self.blocks(x)
        logits = self.lm_head(x)  # (B, T, vocab_size)

        if targets is None:
            loss = None
        else:
            B, T, C = logits.shape
            logits = logits.view(B*T, C)
            targets = targets.view(B*T)
            loss = F.cross_entropy(logits, targets, label_smoothing=0.1)

        return logits, loss

"""
    + PAIR
)
SHIFTED = (
    HEAD
    + """class Config:
    vocab_size = 19


class Output:
    def __init__(self, loss=None, logits=None):
        self.loss, self.scores = loss, logits


class Model(nn.Module):
    def __init__(self, config=Config()):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, 8)
        self.lm_head = nn.Linear(8, config.vocab_size, bias=False)

    def forward(self, input_ids, labels=None):
        hidden_states = self.embed(input_ids)
        logits = self.lm_head(hidden_states)

        loss = None
        if labels is not None:
            logits = logits.float()
            # Shift so that tokens < n predict n
            shift_logits = logits[..., :-1, :].contiguous()
            shift_labels = labels[..., 1:].contiguous()
            loss_fct = nn.CrossEntropyLoss()
            shift_logits = shift_logits.view(-1, self.config.vocab_size)
            shift_labels = shift_labels.view(-1)
            loss = loss_fct(shift_logits, shift_labels)

        return Output(loss=loss, logits=logits)

"""
    + STEPS.format(step="        loss = model(x, labels=y).loss")
)
TIED = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(19, 8)
        self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def loss_of(self, tokens, labels):
        h = self.embed(tokens)
        for layer in self.mix:
            h = torch.relu(layer(h)) + h
        scores = h @ self.embed.weight.t()
        return F.cross_entropy(scores.transpose(1, 2), labels)

"""
    + STEPS.format(step="        loss = model.loss_of(x, y)")
)
TIED_ROWS = TIED.replace(
    "cross_entropy(scores.transpose(1, 2), labels)", "cross_entropy(scores.view(-1, 19), labels.view(-1))"
)
PARTIAL = "from functools import partial\n\n" + IN_STEP.replace("nn.CrossEntropyLoss(", "partial(F.cross_entropy, ")
ROWS = NANO.replace("F.cross_entropy(logits.view(-1, logits.size(-1)), ", "F.nll_loss(log_p.view(-1, 19), ").replace(
    "            loss = F", "            log_p = F.log_softmax(logits, dim=-1)\n            loss = F"
)
PROGRAMS = {
    "nanoGPT": (NANO, "logits = None"),
    "lecture": (LECTURE, "logits = self.lm_head(x) if targets is None else None  # (B, T, vocab_size)"),
    "shifted": (SHIFTED, "hidden_states[..., :-1, :].flatten(0, -2),\n"),
    "tied, of its own": (TIED, "return linear_cross_entropy(h, self.embed.weight, labels)"),
    "tied, a stretch of a product in parentheses": (
        TIED_ROWS.replace("scores.view(", "(h @ self.embed.weight.t())[:, :].reshape("),
        "linear_cross_entropy(h[:, :].flatten(0, -2), self.embed.weight, labels.view(-1))",
    ),
    "tied, in rows of the embedding's size": (
        TIED_ROWS,
        "linear_cross_entropy(h.flatten(0, -2), self.embed.weight, labels.view(-1))",
    ),
    "partial function in the step": (PARTIAL, "loss = model(x, targets=y)"),
    "rows of logarithms": (ROWS, "logits = None"),
    "criterion in the step": (IN_STEP, "loss = model(x, targets=y)"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_and_gradients_stay_the_same(name: str) -> None:
    assert_fixed_alike(*PROGRAMS[name])


def test_what_only_the_loss_needed_goes_with_it() -> None:
    assert "B, T, C = logits.shape" not in fixed(LECTURE)
    assert "shift_logits" not in fixed(SHIFTED)
    assert "loss_fct" not in fixed(SHIFTED)
    assert "transpose" not in fixed(TIED)
    assert "criterion" not in fixed(PARTIAL)
    assert "log_p" not in fixed(ROWS)


def test_logits_without_targets_are_still_made() -> None:
    module = imported(fixed(LECTURE))
    tokens = torch.randint(19, (2, 4))
    logits, loss = module.Model()(tokens)
    assert logits.shape == (2, 4, 19)
    assert loss is None
    assert module.Model()(tokens, tokens)[0] is None


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("losses.append(", "hits = logits.argmax(-1)\n        losses.append(", "may read it"),
        ("logits, loss = model(x, y)", "loss = compute(model, x, y)", "no caller is seen"),
        ("        return logits, loss", "        self.last = logits\n        return logits, loss", "in line 25"),
        ("def run():", "def watch(m):\n    m.register_forward_hook(print)\n\n\ndef run():", "hooks or replaces"),
        ("    model = Model()", "    model = Model()\n    model.lm_head = DDP(model.lm_head)", "may be one of them"),
        ("    model = Model()", "    model = fully_shard(Model())", "sharded"),
        ("ignore_index=-1", "weight=seldom", "knows no `weight`"),
        ("logits.size(-1))", "half)", "not seen to be whole"),
        ("targets.view(-1), ", "targets.view(-1), None, ", "given by position"),
    ],
)
def test_logits_that_are_needed_stay(before: str, after: str, reason: str) -> None:
    assert before in NANO
    answer = FIXER.rewrite(example_request("unfused-loss", NANO.replace(before, after)))
    assert isinstance(answer, Advice)
    assert reason in answer.text


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            "        losses.append(",
            "        hits = output.argmax(-1)\n        losses.append(",
            "read for something else",
        ),
        ("    model = Model()", "    model = torch.nn.DataParallel(Model())", "DataParallel"),
        ("        return logits\n", "        return logits.softmax(-1)\n", "does not end in its output layer"),
        ("ignore_index=0", "ignore_index=PAD", None),
        ("y.reshape(-1))", "y.reshape(-1)) / 2\n            aux = output.square().mean()", "read for something else"),
        ("output = model(x)", "output = checkpoint(model, x)", "another function calls the model"),
        ("output = model(x)", "output = functional_call(model, weights, (x,))", "another function calls the model"),
        ("    model = Model()", "    model = nn.Sequential(Model(), Scale())", "hands no targets on"),
        (
            "    model = Model()",
            "    model = Model()\n    model.out = Adapted(model.out)",
            "may be one of them",
        ),
        ("    model = Model()", "    model = torch.jit.trace(Model(), x)", "TorchScript"),
        ("    model = Model()", "    model = Model()\n    nn.utils.weight_norm(model.out)", "may be one of them"),
        ("tokens: torch.Tensor)", "tokens: torch.Tensor, /)", "given by position alone"),
        (
            "        logits = self.out(h)",
            "        targets = h * 2\n        logits = self.out(targets)",
            "another `targets`",
        ),
        ("    def forward(", "    @twice\n    def forward(", "is decorated"),
    ],
)
def test_a_step_that_needs_logits_keeps_them(before: str, after: str, reason: str | None) -> None:
    assert before in IN_STEP
    answer = FIXER.rewrite(example_request("unfused-loss", IN_STEP.replace(before, after)))
    assert not isinstance(answer, Edits)
    if reason is not None:
        assert isinstance(answer, Advice)
        assert reason in answer.text


NAMED = NANO.replace("return logits, loss", "return {'logits': logits, 'loss': loss}").replace(
    "logits, loss = model(x, y)", "out = model(x, y)\n        loss = out['loss']"
)


@pytest.mark.parametrize(
    ("text", "reader"),
    [
        (NAMED, "        log(out)"),
        (NAMED, "        seen = getattr(out, 'logits')"),
        (NANO, "        again = model\n        out = again(x, y)\n        seen = out[0]"),
        (NANO, "        def accuracy(f):\n            return f(x, y)[0].argmax(-1)\n        accuracy(model)"),
    ],
    ids=["given away", "by getattr", "another name", "a parameter"],
)
def test_who_reads_logits_by_another_way_is_seen(text: str, reader: str) -> None:
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits)
    answer = FIXER.rewrite(
        example_request(
            "unfused-loss", text.replace("        loss.backward()", f"{reader}\n        loss.backward()", 1)
        )
    )
    assert isinstance(answer, Advice)
    assert "may read it" in answer.text


def test_an_option_of_the_layers_name_is_no_other_layer() -> None:
    text = IN_STEP.replace("    model = Model()", "    args.out = pathlib.Path(args.out)\n    model = Model()")
    text = text.replace("import torch\n", "import pathlib\n\nimport torch\n", 1)
    assert "loss = model(x, targets=y)" in fixed(text)


def test_a_size_that_is_bound_beside_others_is_known() -> None:
    text = IN_STEP.replace("class Model", "V, W = 19, 8\n\n\nclass Model").replace(
        "nn.Linear(8, 19)", "nn.Linear(W, V)"
    )
    assert "loss = model(x, targets=y)" in fixed(text.replace("output.reshape(-1, 19)", "output.reshape(-1, V)"))


@pytest.mark.parametrize("change", ["logits.div_(2)", "logits = logits / 2", "logits[:, 0] = 0", "x = x * 2"])
def test_logits_or_inputs_that_change_on_the_way_are_left_alone(change: str) -> None:
    text = NANO.replace("self.lm_head(x)\n", f"self.lm_head(x)\n            {change}\n")
    assert text != NANO
    assert not isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits)


def test_callers_in_other_files_are_asked_too() -> None:
    model, train = (
        NANO.split("\ndef run")[0],
        HEAD + "from model import Model\n\n\ndef run" + NANO.split("\ndef run")[1],
    )
    request = example_request("unfused-loss", train)
    apart = Request(request.finding, {"train.py": train, "model.py": model}, entry="train.py")
    answer = FIXER.rewrite(apart)
    assert isinstance(answer, Edits)
    assert set(answer.files) == {"model.py"}
    reads = train.replace("losses.append(", "print(logits.shape)\n        losses.append(")
    answer = FIXER.rewrite(Request(request.finding, {"train.py": reads, "model.py": model}, entry="train.py"))
    assert isinstance(answer, Advice)
    assert "train.py:17 may read it" in answer.text


OWN_TRAINER = """class Trainer:
    def __init__(self, model):
        self.model = model

    def run(self):
        model = self.model
        logits, self.loss = model(x, y)
        self.loss.backward()


Trainer(Model()).run()
"""


@pytest.mark.parametrize(
    ("written", "library"),
    [
        ("class Trainer:", False),
        ("class Trainer(object):", False),
        ("class Trainer(transformers.Trainer):", True),
        ("class Runner:", True),
    ],
)
def test_a_trainer_of_the_programs_own_is_no_library(written: str, library: bool) -> None:
    text = NANO.replace(PAIR, OWN_TRAINER.replace("class Trainer:", written))
    answer = FIXER.rewrite(example_request("unfused-loss", text))
    assert isinstance(answer, Advice if library else Edits), answer


def test_what_only_the_graph_shows_is_left_to_the_graph() -> None:
    text = (
        "from transformers import AutoModelForCausalLM\n\nmodel = AutoModelForCausalLM.from_config(config)\n"
        "for batch in batches:\n    model(**batch).loss.backward()\n"
    )
    answer = FIXER.rewrite(example_request("unfused-loss", text))
    assert isinstance(answer, Advice)
    assert 'model.compile(backend="diagnose")' in answer.text
    assert FIXER.rewrite(example_request("memory-pressure", text)) is None, "nothing says that it is the logits"
    assert FIXER.rewrite(example_request("unfused-loss", text + "model.compile()\n")) is None


def test_the_program_needs_nothing_of_this_package_but_the_kernels() -> None:
    code = (
        "import sys, json, torch; before = set(sys.modules); from diagnose.kernels import linear_cross_entropy;"
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert set(json.loads(told.stdout)) - sys.stdlib_module_names <= {"diagnose", "triton"}


def test_the_sick_program_arrives_at_no_logits() -> None:
    path = Path(__file__).parents[3] / "benchmarks" / "sickbay" / "unfused_loss" / "train.py"
    patched = fixed(path.read_text())
    assert "loss = model(sequences[:, :-1], targets=sequences[:, 1:])" in patched
    assert "token_loss" not in patched


def test_rows_of_another_size_than_the_tied_embedding_has_are_not_taken_for_logits() -> None:
    answer = FIXERS["fuse-linear-cross-entropy"].rewrite(
        example_request("unfused-loss", TIED_ROWS.replace("view(-1, 19)", "view(-1, 18)"))
    )
    assert isinstance(answer, Advice)
    assert "not seen to be whole" in answer.text
