"""fuse-linear-cross-entropy on models as people write them: the same losses and gradients, and no logits."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import rewriting
import torch
from rewriting import FIXERS, imported
from watching import LIMIT_S

from diagnose.fixer import Advice, Edits, Request, example_request

FIXER = FIXERS["fuse-linear-cross-entropy"]
fixed = partial(rewriting.fixed, "fuse-linear-cross-entropy", rule="unfused-loss")
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
STEPS = """
def run():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Model()
    x, y = torch.randint(19, (3, 5)), torch.randint(19, (3, 5))
    losses = []
    for _ in range(2):
        model.zero_grad()
{step}
        loss.backward()
        losses.append(loss.detach())
    torch.set_default_dtype(torch.float32)
    return [*losses, *(p.grad for p in model.parameters())]
"""
PAIR = STEPS.format(step="        logits, loss = model(x, y)")
NANO = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(wte=nn.Embedding(19, 8), ln_f=nn.LayerNorm(8)))
        self.lm_head = nn.Linear(8, 19, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # tied

    def forward(self, idx, targets=None):
        x = self.transformer.ln_f(self.transformer.wte(idx))

        if targets is not None:
            # if we are given some desired targets also calculate the loss
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            # inference-time mini-optimization: only forward the lm_head on the very last position
            logits = self.lm_head(x[:, [-1], :])  # note: using list [-1] to preserve the time dim
            loss = None

        return logits, loss

    def generate(self, idx):
        logits, _ = self(idx)
        return logits[:, -1, :]

"""
    + PAIR
)
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
IN_STEP = (
    HEAD
    + """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(19, 8)
        self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.out = nn.Linear(8, 19)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        for layer in self.mix:
            h = torch.relu(layer(h)) + h
        logits = self.out(h)
        return logits

"""
    + STEPS.format(
        step="        with torch.autocast('cpu', enabled=False):\n            output = model(x)\n"
        "            loss = criterion(output.reshape(-1, 19), y.reshape(-1))"
    ).replace("    losses = []", "    criterion = nn.CrossEntropyLoss(ignore_index=0)\n    losses = []")
)
FUNCTION = (
    IN_STEP[: IN_STEP.index("\ndef run")]
    + """
def token_loss(scores, wanted):
    \"\"\"Mean over all tokens.\"\"\"
    return F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())

"""
    + STEPS.format(step="        loss = loss_of(model(x), y)").replace(
        "    losses = []", "    loss_of = token_loss\n    losses = []"
    )
)
TITAN = (
    FUNCTION.replace("def token_loss(scores, wanted)", "def token_loss(pred, labels)")
    .replace("scores.flatten(0, 1).float(), wanted.flatten()", "pred.flatten(0, 1).float(), labels.flatten(0, 1)")
    .replace(
        "        loss = loss_of(model(x), y)\n",
        "        with torch.enable_grad():\n            pred = model(x)\n"
        "            loss = loss_of(pred, y)\n        # free them before the backward pass\n        del pred\n",
    )
)
WRITTEN = FUNCTION.replace(
    "    return F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())\n",
    "    log_p = torch.log_softmax(scores, dim=-1)\n    return -log_p.gather(-1, wanted.unsqueeze(-1)).mean()\n",
)
COLUMN = FUNCTION.replace(
    "    return F.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())\n",
    "    rows = scores.view(-1, scores.size(-1))\n    log_p = F.log_softmax(rows, 1)\n"
    "    return -log_p.gather(1, wanted.view(-1, 1)).mean()\n",
)
IN_FORWARD = NANO.replace(
    "            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)\n",
    "            log_p = F.log_softmax(logits, dim=-1)\n"
    "            loss = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mean()\n",
)
BODY = "F.cross_entropy(scores.flatten(0, 1), wanted.flatten())"
FORMS = {
    "compiled": ("", "    loss_of = torch.compile(token_loss, dynamic=False, disable=True)\n"),
    "compiled under a condition": (
        "",
        "    loss_of = torch.compile(token_loss) if torch.cuda.is_available() else token_loss\n",
    ),
    "compiled in an if": (
        "",
        "    loss_of = token_loss\n    if torch.cuda.is_available():\n        loss_of = torch.compile(loss_of)\n",
    ),
    "nested": ("", f"    def loss_of(scores, wanted):\n        return {BODY}\n\n"),
    "lambda": ("", f"    loss_of = lambda scores, wanted: {BODY}\n"),
    "static method": (
        f"class Losses:\n    @staticmethod\n    def token_loss(scores, wanted):\n        return {BODY}\n\n\n",
        "    loss_of = Losses.token_loss\n",
    ),
    "module": (
        f"class TokenLoss(nn.Module):\n    def forward(self, scores, wanted):\n        return {BODY}\n\n\n",
        "    loss_of = TokenLoss().to('cpu')\n",
    ),
}


def taken_by(form: str) -> str:
    """FUNCTION, with its loss taken by something else."""
    above, bound = FORMS[form]
    return FUNCTION.replace("    loss_of = token_loss\n", bound).replace("def token_loss", f"{above}def token_loss")


TRAINER = (
    IN_STEP[: IN_STEP.index("\ndef run")]
    + f"""
class Trainer:
    def __init__(self, model):
        self.model = model
        self.compiled = self.token_loss

    def token_loss(self, scores, wanted):
        return {BODY}

    def step(self, x, y):
        loss = self.token_loss(self.model(x), y)
        loss.backward()
        return loss

"""
    + STEPS.format(step="        loss = trainer.step(x, y)")
    .replace("        loss.backward()\n", "")
    .replace("    losses = []", "    trainer = Trainer(model)\n    losses = []")
)
GIVEN = (
    TRAINER.replace("(self, model):", "(self, model, loss_of):")
    .replace(
        "        self.model = model\n",
        "        self.model = model\n        self.loss_of = torch.compile(loss_of, disable=True)\n",
    )
    .replace("self.token_loss(", "self.loss_of(")
    .replace("    def token_loss(self, ", "    @staticmethod\n    def token_loss(")
    .replace("Trainer(model)", "Trainer(model, Trainer.token_loss)")
)
METHOD = FUNCTION.replace(
    "        return logits\n",
    f"        return logits\n\n    def loss_of(self, scores, wanted):\n        return {BODY}\n",
).replace("loss = loss_of(", "loss = model.loss_of(")
PROGRAMS = {
    **{f"a loss that is {form}": (taken_by(form), "        loss = model(x, targets=y)\n") for form in FORMS},
    "a trainer that is given the loss": (GIVEN, "        loss = self.model(x, targets=y)\n"),
    "the model's method": (METHOD, "        loss = model(x, targets=y)\n"),
    "a trainer's method": (TRAINER, "        loss = self.model(x, targets=y)\n"),
    "written out": (WRITTEN, "            return linear_cross_entropy(h, self.out.weight, targets, self.out.bias)\n"),
    "written out, in rows": (COLUMN, "targets.flatten(), self.out.bias)"),
    "written out, in the model": (
        IN_FORWARD,
        "            loss = linear_cross_entropy(x, self.lm_head.weight, targets)\n",
    ),
    "nanoGPT": (NANO, "logits = None"),
    "lecture": (LECTURE, "logits = self.lm_head(x) if targets is None else None  # (B, T, vocab_size)"),
    "shifted": (SHIFTED, "hidden_states[..., :-1, :].flatten(0, -2),\n"),
    "tied, of its own": (TIED, "return linear_cross_entropy(h, self.embed.weight, labels)"),
    "tied, in rows of the embedding's size": (
        TIED_ROWS,
        "linear_cross_entropy(h.flatten(0, -2), self.embed.weight, labels.view(-1))",
    ),
    "criterion in the step": (IN_STEP, "loss = model(x, targets=y)"),
    "logits that are let go": (TITAN, "            loss = model(x, targets=y)\n"),
    "function in the step": (FUNCTION, "loss = model(x, targets=y)"),
}


def outcome(text: str) -> list[torch.Tensor]:
    module = imported(text)
    results: list[torch.Tensor] = module.run()
    return results


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_and_gradients_stay_the_same(name: str) -> None:
    text, wanted = PROGRAMS[name]
    patched = fixed(text)
    assert wanted in patched
    assert "from diagnose.kernels import linear_cross_entropy\n" in patched
    # In the programs with `.float()` the original rounds its logits to float32, the fused operator does not.
    rtol, atol = (1e-5, 1e-6) if ".float()" in text else (1e-11, 1e-12)
    for one, other in zip(outcome(text), outcome(patched), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol)


def test_what_only_the_loss_needed_goes_with_it() -> None:
    assert "B, T, C = logits.shape" not in fixed(LECTURE)
    assert "shift_logits" not in fixed(SHIFTED)
    assert "loss_fct" not in fixed(SHIFTED)
    assert "token_loss" not in fixed(FUNCTION)
    assert "del pred" not in fixed(TITAN)
    assert "loss_of" not in fixed(FUNCTION)
    assert "transpose" not in fixed(TIED)


@pytest.mark.parametrize("form", ["compiled", "compiled under a condition", "nested", "lambda"])
def test_a_loss_that_nobody_calls_any_more_goes(form: str) -> None:
    patched = fixed(taken_by(form))
    assert "loss_of" not in patched
    assert ("token_loss" in patched) is (form in {"nested", "lambda"}), "the other one was unused before"


def test_a_loss_that_is_taken_elsewhere_too_stays() -> None:
    check = "\n\ndef check(model, x, y):\n    with torch.no_grad():\n        return token_loss(model(x), y)\n"
    patched = fixed(taken_by("compiled under a condition") + check)
    assert check in patched
    assert "def token_loss(scores, wanted):\n" in patched
    assert "loss_of" not in patched
    module = imported(patched)
    model, x, y = module.Model(), torch.randint(19, (2, 4)), torch.randint(19, (2, 4))
    torch.testing.assert_close(module.check(model, x, y), model(x, targets=y))


def test_a_condition_that_does_more_than_ask_stays() -> None:
    text = taken_by("compiled under a condition").replace("torch.cuda.is_available()", "prepare()")
    patched = fixed(text)
    assert "loss = model(x, targets=y)" in patched
    assert "loss_of = torch.compile(token_loss) if prepare() else token_loss\n" in patched


def test_what_a_condition_asks_stays() -> None:
    bound = (
        "    quick = torch.manual_seed(1) is None\n    loss_of = torch.compile(token_loss) if quick else token_loss\n"
    )
    patched = fixed(FUNCTION.replace("    loss_of = token_loss\n", bound))
    assert "    quick = torch.manual_seed(1) is None\n    losses = []\n" in patched


def test_a_loss_of_another_file_is_followed() -> None:
    head, rest = FUNCTION.split("\ndef token_loss")
    loss, run = rest.split("\n\ndef run")
    sources = {
        "train.py": head.replace("import torch\n", "import torch\nfrom losses import token_loss\n", 1)
        + "\n\ndef run"
        + run,
        "losses.py": "import torch.nn.functional as F\n\n\ndef token_loss" + loss,
    }
    request = example_request("unfused-loss", sources["train.py"])
    answer = FIXER.rewrite(Request(request.finding, sources, entry="train.py"))
    assert isinstance(answer, Edits)
    assert set(answer.files) == {"train.py"}
    assert "loss = model(x, targets=y)" in answer.files["train.py"]


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
        ("def run():", "def watch(m):\n    m.register_forward_hook(print)\n\n\ndef run():", "hooked"),
        ("    model = Model()", "    model = Model()\n    model.lm_head = DDP(model.lm_head)", "wrapped for itself"),
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
            "another one is put in its place",
        ),
        ("    model = Model()", "    model = torch.jit.trace(Model(), x)", "TorchScript"),
        ("    model = Model()", "    model = Model()\n    weight_norm(model.out)", "hooked or adapted"),
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss_of = token_loss", "loss_of = torch.compile(token_loss) if quick else other_loss"),
        ("loss_of = token_loss", "loss_of = token_loss\n    if soft:\n        loss_of = other_loss"),
        ("loss_of = token_loss", "loss_of = smoothed(token_loss)"),
        ("loss_of = token_loss", f"wanted = y.flatten()\n    loss_of = lambda scores, wanted: {BODY}"),
        ("def run():\n", "def run(loss_of=None):\n"),
        ("def token_loss", "@halved\ndef token_loss"),
        ("def token_loss", "async def token_loss"),
        ("scores.flatten(0, 1).float()", "scores.flatten(0, 1) / 0.7"),
        ("wanted.flatten())", "wanted.flatten(), weight=seldom)"),
        ("wanted.flatten())", "wanted.flatten(), ignore_index=PAD)"),
        ("wanted.flatten())", "wanted.flatten()) + 1e-4 * scores.logsumexp(-1).square().mean()"),
        ("wanted.flatten())", "wanted.flatten()), scores.argmax(-1)"),
        ("wanted.flatten())", "wanted.flatten()) / 4"),
        ("    return F.", "    print(scores.mean())\n    return F."),
        ("    return F.", "    if scores.isnan().any():\n        return scores.sum()\n    return F."),
        ("loss = loss_of(model(x), y)", "loss = loss_of(*pair(model(x), y))"),
        (
            "loss = loss_of(model(x), y)",
            "out = model(x)\n        loss = loss_of(out, y)\n        best = out.argmax(-1)",
        ),
        ("loss = loss_of(model(x), y)", "loss = loss_of(model(x)[:, 1:], y)"),
    ],
)
def test_losses_that_look_alike_keep_their_logits(before: str, after: str) -> None:
    assert before in FUNCTION
    answer = FIXER.rewrite(example_request("unfused-loss", FUNCTION.replace(before, after)))
    assert not isinstance(answer, Edits), answer.files["train.py"]


def test_a_loss_that_callers_pass_differently_is_not_followed() -> None:
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", GIVEN)), Edits)
    text = GIVEN.replace("    losses = []", "    again = Trainer(model, smooth_loss)\n    losses = []")
    assert not isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("    return -log_p.gather", "    smooth = log_p.mean()\n    return -0.1 * smooth - log_p.gather"),
        ("torch.log_softmax(scores, dim=-1)", "torch.log_softmax(scores * 2, dim=-1)"),
        ("torch.log_softmax(scores, dim=-1)", "torch.log_softmax(scores, dim=1)"),
        ("    return -log_p", "    return log_p"),
        (".mean()\n\n", ".squeeze(-1)[wanted > 0].mean()\n\n"),
        (".mean()\n\n", ".mean(), log_p\n\n"),
        ("wanted.unsqueeze(-1)).mean()", "wanted.unsqueeze(-1)).mean(0).max()"),
    ],
)
def test_likelihoods_that_look_alike_keep_their_logits(before: str, after: str) -> None:
    assert before in WRITTEN
    answer = FIXER.rewrite(example_request("unfused-loss", WRITTEN.replace(before, after)))
    assert not isinstance(answer, Edits), answer.files["train.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "\ndef run",
            "\nclass Other(Trainer):\n    def token_loss(self, scores, wanted):\n        return 0\n\n\ndef run",
        ),
        ("(self, model):", "(self, model, token_loss):\n        self.token_loss = token_loss"),
        ("    trainer = Trainer(model)\n", "    trainer = Trainer(model)\n    trainer.token_loss = smooth_loss\n"),
        ("        self.model = model\n", "        self.model = model\n        self.token_loss = smooth_loss\n"),
    ],
)
def test_a_method_that_something_else_overrides_is_not_followed(before: str, after: str) -> None:
    text = TRAINER.replace(before, after)
    assert text != TRAINER
    assert not isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits)


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
    text = IN_STEP.replace("    model = Model()", "    args.out = Path(args.out)\n    model = Model()")
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
    path = Path(__file__).parents[1] / "benchmarks" / "sickbay" / "unfused_loss" / "train.py"
    text = path.read_text()
    for name in ("native-cross-entropy", "compile-loss"):
        answer = FIXERS[name].rewrite(example_request("unfused-loss", text))
        assert isinstance(answer, Edits)
        text = answer.files["train.py"]
        if name == "native-cross-entropy":
            assert "loss = model(sequences[:, :-1], targets=sequences[:, 1:])" in fixed(text)
    patched = fixed(text)
    assert "token_loss" not in patched
    assert "@torch.compile" not in patched


def test_rows_of_another_size_than_the_tied_embedding_has_are_not_taken_for_logits() -> None:
    answer = FIXERS["fuse-linear-cross-entropy"].rewrite(
        example_request("unfused-loss", TIED_ROWS.replace("view(-1, 19)", "view(-1, 18)"))
    )
    assert isinstance(answer, Advice)
    assert "not seen to be whole" in answer.text
