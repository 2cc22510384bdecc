"""fuse-linear-cross-entropy follows a loss into the functions that compute it, and no other."""

from __future__ import annotations

import pytest
import torch
from loss_programs import FIXER, IN_STEP, NANO, STEPS, assert_fixed_alike, fixed
from rewriting import imported, rewritten

from diagnose.fixer import Edits, Request, example_request

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
    "logits that are let go": (TITAN, "            loss = model(x, targets=y)\n"),
    "function in the step": (FUNCTION, "loss = model(x, targets=y)"),
}

SILENT = NANO.replace("targets=None):", "targets=None, return_logits=True):").replace(
    "        return logits, loss\n",
    "        if not return_logits:\n            logits = None\n        return logits, loss\n",
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_and_gradients_stay_the_same(name: str) -> None:
    assert_fixed_alike(*PROGRAMS[name])


def test_logits_that_a_switch_drops_are_bound_all_the_same() -> None:
    assert_fixed_alike(SILENT, "            logits = None\n            loss = linear_cross_entropy(")


def test_logits_that_a_switch_may_leave_to_a_caller_stay() -> None:
    read = SILENT.replace("logits, loss = model(x, y)\n", "logits, loss = model(x, y)\n        print(logits.shape)\n")
    assert rewritten(FIXER.name, read, rule="unfused-loss") is None


def test_what_only_the_loss_needed_goes_with_it() -> None:
    assert "token_loss" not in fixed(FUNCTION)
    assert "loss_of" not in fixed(FUNCTION)
    assert "del pred" not in fixed(TITAN)


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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loss_of = token_loss", "loss_of = torch.compile(token_loss) if quick else other_loss"),
        ("loss_of = token_loss", "loss_of = token_loss\n    if soft:\n        loss_of = other_loss"),
        ("loss_of = token_loss", "loss_of = smoothed(token_loss)"),
        ("loss_of = token_loss", f"wanted = y.flatten()\n    loss_of = lambda scores, wanted: {BODY}"),
        ("def run():\n", "def run(loss_of=None):\n"),
        ("loss = loss_of(model(x), y)", "loss = loss_of(model(x), y.float().softmax(-1))"),
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
    ("line", "edited"),
    [
        ("seen = 1  # out['logits'] is not read", True),
        ("text = \"ask for .logits and ['logits']\"", True),
        ("note = {'logits': 1}", True),
        ("seen = out['logits']", False),
        ("seen = out.get('logits')", False),
        ("seen = operator.itemgetter('logits')(out)", False),
        ("key = 'logits'\n        seen = out[key]", False),
        ("seen = out.logits", False),
        ("trainer = Trainer(model)", False),
        ("trainer = MyTrainer(model)\n\n\nclass MyTrainer(transformers.Trainer):\n    pass", False),
    ],
)
def test_a_reader_of_logits_is_found_in_code_and_not_in_text(line: str, edited: bool) -> None:
    text = NAMED.replace("        loss.backward()", f"        loss.backward()\n        {line}", 1)
    if "class" in line:
        head, _, tail = line.partition("\n\n\n")
        text = NAMED.replace("        loss.backward()", f"        loss.backward()\n        {head}", 1) + "\n\n" + tail
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits) is edited


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("score = model.forward\n        seen, _ = score(x, y)\n        print(seen)", False),
        ("score = functools.partial(model, targets=y)\n        seen, _ = score(x)\n        print(seen)", False),
        ("score = functools.partial(model, targets=y)\n        unread, held_out = score(x)", True),
        ("seen, other = divmod(7, 2)\n        print(seen)", True),
        ("seen, other = math.modf(0.5)\n        print(seen)", True),
    ],
)
def test_a_model_that_is_called_by_another_name_may_be_read_there(line: str, edited: bool) -> None:
    text = "import functools\nimport math\n" + NANO.replace(
        "        loss.backward()", f"        {line}\n        loss.backward()", 1
    )
    assert isinstance(FIXER.rewrite(example_request("unfused-loss", text)), Edits) is edited
