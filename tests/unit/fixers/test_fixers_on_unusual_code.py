"""Comments within calls, tabs, functions on one line, outputs that are taken apart: what fixers write there runs."""

from __future__ import annotations

import pytest
import torch
from rewriting import FIXERS, rewritten

from diagnose.fixer import Advice, example_request

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"


def numbers(text: str) -> torch.Tensor:
    """What a program leaves in `found`."""
    torch.manual_seed(0)
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), scope)
    found = scope["found"]
    assert isinstance(found, torch.Tensor)
    return found


MODEL = HEAD + (
    "class GPT(nn.Module):\n    def __init__(self, vocab, width):\n        super().__init__()\n"
    "        self.wte = nn.Embedding(vocab, width)\n        self.head = nn.Linear(width, vocab, bias=False)\n"
    "        self.head.weight = self.wte.weight  # tied\n\n{forward}\n\n"
    "model, found = GPT(9, 4), []\nbatches = [(torch.randint(9, (2, 3)), torch.randint(9, (2, 3))) for _ in range(3)]\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
)
PLAIN_FORWARD = (
    "    def forward(\n        self,\n        idx: torch.Tensor,  # (B, T)\n    ) -> torch.Tensor:\n"
    "        return self.head(self.wte(idx))\n"
)
COMMENTED = MODEL.format(forward=PLAIN_FORWARD) + (
    "for x, y in batches:\n    logits = model(\n        x,  # tokens\n    )\n"
    "    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())\n    optimizer.zero_grad()\n    loss.backward()\n"
    "    optimizer.step()\n    found.append(loss.detach())\n"
    "with torch.no_grad():\n    found.append(model(batches[0][0]).sum())\nfound = torch.stack(found)\n"
)


def test_the_model_is_given_targets_beside_comments() -> None:
    text = rewritten("fuse-linear-cross-entropy", COMMENTED) or ""
    assert "        idx: torch.Tensor,  # (B, T)\n        targets: torch.Tensor | None = None,\n    ) ->" in text
    assert "    loss = model(\n        x,  # tokens\n        targets=y,\n    )\n    optimizer" in text
    torch.testing.assert_close(numbers(text), numbers(COMMENTED))


NAMED_FORWARD = (
    "    def forward(self, idx, targets):\n        logits = self.head(self.wte(idx))\n"
    "        loss = F.cross_entropy(logits.flatten(0, 1), targets.view(-1))\n        return {made}\n"
)


@pytest.mark.parametrize(
    ("made", "use"),
    [
        ('{"loss": loss, "logits": logits}', "loss, scores = model(x, y).values()"),
        ('{"loss": loss, "logits": logits}', "loss, scores = (each for each in model(x, y).values())"),
        ("Out(loss=loss, logits=logits)", "loss, scores = model(x, y)"),
        ("Out(loss=loss, logits=logits)", "out = model(x, y); loss = out[0]; scores = out[1]"),
        ("Out(loss=loss, logits=logits)", "out = model(x, y)\n    loss, scores = out"),
        ("Out(loss=loss, logits=logits)", "loss, scores = [*model(x, y)]"),
    ],
)
def test_logits_that_are_read_without_their_name_stay(made: str, use: str) -> None:
    head = MODEL.format(forward=NAMED_FORWARD.replace("{made}", made)) + "for x, y in batches:\n"
    read = head + f"    {use}\n    loss.backward()\n    hits = scores.argmax(-1) == y\n"
    assert rewritten("fuse-linear-cross-entropy", read) is None
    loss = 'model(x, y)["loss"]' if made.startswith("{") else "model(x, y).loss"
    assert rewritten("fuse-linear-cross-entropy", head + f"    loss = {loss}\n    loss.backward()\n") is not None


@pytest.mark.parametrize(
    "targets",
    ["soft.view(-1, 9)", "soft.softmax(-1)", "F.one_hot(y.view(-1), 9).float()", "soft.reshape(-1, soft.size(-1))"],
)
def test_probabilities_of_classes_are_left_to_torch(targets: str) -> None:
    text = HEAD + f"def loss_of(logits, soft, y):\n    return F.cross_entropy(logits.view(-1, 9), {targets})\n"
    assert rewritten("fuse-cross-entropy", text) is None
    assert rewritten("fuse-cross-entropy", text.replace(targets, "y.view(-1)")) is not None


TABS = HEAD + (
    "class Block(nn.Module):\n\tdef __init__(self):\n\t\tsuper().__init__()\n\t\tself.up = nn.Linear(4, 4)\n\n"
    "\tdef forward(self, x, mask=None):\n\t\treturn x + torch.tanh(self.up(x)) * mask\n\n\n"
    "class Net(nn.Module):\n\tdef __init__(self, n):\n\t\tsuper().__init__()\n"
    "\t\tself.layers = nn.ModuleList([Block() for _ in range(n)])\n\n\tdef forward(self, x, mask):\n"
    "\t\touts = []\n\t\tfor i, layer in enumerate(self.layers, 1):\n"
    "{call}\t\t\touts.append(x)\n\t\treturn sum(outs)\n\n\n"
    "net = Net(3)\nx = torch.randn(2, 4, requires_grad=True)\nout = net(x, torch.ones(2, 4)).sum()\nout.backward()\n"
    "found = torch.cat([out.detach().view(1), x.grad.flatten(), net.layers[0].up.weight.grad.flatten()])\n"
)
CALL = "\t\t\tx = layer(\n\t\t\t\tx,  # hidden\n\t\t\t\tmask=mask,\n\t\t\t)\n"


def test_a_call_over_several_lines_keeps_them_and_their_comments() -> None:
    text = TABS.format(call=CALL)
    fixed = rewritten("checkpoint-blocks", text) or ""
    assert (
        "\t\t\tx = checkpoint(\n\t\t\t\tlayer,\n\t\t\t\tx,  # hidden\n\t\t\t\tmask=mask,\n"
        "\t\t\t\tuse_reentrant=False,\n\t\t\t)\n" in fixed
    )
    assert torch.equal(numbers(fixed), numbers(text))


@pytest.mark.parametrize("kept", ["none", "every other"])
def test_a_comment_among_the_arguments_of_a_checkpoint_is_no_obstacle(kept: str) -> None:
    call = (
        "\t\t\tx = ckpt(\n\t\t\t\tlayer,\n\t\t\t\tx,\n\t\t\t\tmask,  # of ones\n\t\t\t\tuse_reentrant=False,\n\t\t\t)\n"
    )
    text = "from torch.utils.checkpoint import checkpoint as ckpt\n" + TABS.format(call=call)
    text = text.replace("enumerate(self.layers, 1)", "enumerate(self.layers)")
    fixed = rewritten("checkpoint-fewer", text, {"checkpointed": kept})
    assert fixed is not None
    assert torch.equal(numbers(fixed), numbers(text))


def test_both_sides_of_a_conditional_expression_become_one() -> None:
    text = (
        "from torch.utils.checkpoint import checkpoint\n\n\ndef run(f, x, saving):\n"
        "    return checkpoint(f, x, use_reentrant=False) if saving else f(x)\n"
    )
    assert rewritten("checkpoint-fewer", text) == "\n\ndef run(f, x, saving):\n    return f(x)\n"


def test_a_constructor_on_one_line_has_no_room_for_another() -> None:
    text = HEAD + (
        "class Trainer:\n    def __init__(self, model): self.model = model\n\n    def fit(self, batches):\n"
        "        for x in batches:\n            loss = self.model(x).mean()\n            loss.backward()\n"
        "            self.optimizer.step()\n\n\nTrainer(nn.Linear(4, 4)).fit([])\n"
    )
    assert rewritten("use-diagnose-backend", text) is None
    roomy = text.replace("(self, model): self", "(self, model):\n        self")
    assert "        self.model.compile(backend" in (rewritten("use-diagnose-backend", roomy) or "")


ACCUMULATES = (
    "import torch\nbatch_size = 8\naccumulate = 4\nrate = {rate}\noptimizer = torch.optim.SGD(weights, lr=rate)\n"
    "for step in range(10):\n    for micro_step in range(accumulate):\n        x, y = get_batch(batch_size)\n"
    "        loss = model(x, y) / accumulate\n        loss.backward()\n"
    "    optimizer.step()\n    optimizer.zero_grad()\n"
)


def test_a_learning_rate_that_hangs_on_the_micro_batch_is_not_changed_with_it() -> None:
    text = ACCUMULATES.format(rate="0.1")
    assert rewritten("bigger-microbatch", text, {"factor": 2}) is not None
    for scaled in ("lr=0.1 * batch_size)", "learning_rate = 1e-3 * batch_size\n"):
        one = text.replace("lr=rate)", scaled) if scaled.endswith(")") else text.replace("rate = 0.1\n", scaled)
        answer = FIXERS["bigger-microbatch"].rewrite(example_request("small-batch", one, setting={"factor": 2}))
        assert isinstance(answer, Advice) and "hangs on the size" in answer.text
    whole = text.replace("lr=rate)", "lr=0.1 * batch_size * accumulate)")
    assert rewritten("bigger-microbatch", whole, {"factor": 2}) is not None


ATTENTION = HEAD + (
    "class Attention(nn.Module):\n    def forward(self, q, k, v):\n"
    "        scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5\n        weights = F.softmax(scores, dim=-1)\n"
    "        return (\n            weights @ v  # (B, H, T, D)\n        )\n"
)
LOSS = HEAD + (
    "def loss_of(logits, y):\n    return F.cross_entropy(\n        logits.flatten(0, 1),  # (B * T, V)\n"
    "        # padding counts nothing\n        y.flatten(),\n        ignore_index=-1,\n    )\n"
)
GELU = HEAD + (
    "def act(x):\n    return 0.5 * x * (  # the exact form\n"
    "        1.0 + torch.erf(x / 2**0.5)  # not the tanh\n    )\n"
)


@pytest.mark.parametrize(
    "name, text",
    [
        ("use-sdpa", ATTENTION),
        ("fuse-cross-entropy", LOSS),
        ("native-gelu", GELU),
    ],
)
def test_comments_inside_of_a_formula_outlive_it(name: str, text: str) -> None:
    fixed = rewritten(name, text)
    assert fixed is not None
    comments = [line.partition("# ")[2] for line in text.splitlines() if "# " in line]
    assert comments
    assert [comment for comment in comments if fixed.count(f"# {comment}\n") == 1] == comments


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "{net}def train(model, series):\n    {loop}\n\n\nnet = Net()\ntrain(net, torch.randn(4, 8, 8))\n",
            "another function than",
        ),
        (
            "{net}series = torch.randn(4, 8, 8)\nmodel = Net() if wide else Net(2)\nmodel = wrap(model)\n{loop}\n",
            "wrapped",
        ),
        ("{net}from nets import model\n\nseries = torch.randn(4, 8, 8)\n{loop}\n", "where the model is built is not"),
    ],
)
def test_the_launches_of_a_model_that_lies_elsewhere_are_recorded_by_hand(text: str, reason: str) -> None:
    net = "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    pass\n\n\n"
    loop = "for step in range(9):\n        model(series[step % 4]).mean().backward()"
    answer = FIXERS["cuda-graphs"].rewrite(example_request("launch-bound", text.format(net=net, loop=loop)))
    assert isinstance(answer, Advice)
    assert answer.text.startswith("Record the model's launches by hand: `torch.cuda.make_graphed_callables(")
    assert "No edit is made: " in answer.text
    assert reason in answer.text


@pytest.mark.parametrize(
    ("name", "rule"),
    [("cuda-graphs", "launch-bound"), ("mark-dynamic", "recompiling"), ("memory-budget", "memory-pressure")],
)
def test_the_compile_of_a_keras_model_takes_no_option_of_torch(name: str, rule: str) -> None:
    text = "import torch\n\nmodel = build()\nmodel.compile({})\nmodel.fit(x, y)\n"
    assert rewritten(name, text.format(""), rule=rule) is not None
    assert isinstance(FIXERS[name].rewrite(example_request(rule, text.format("loss='mae', optimizer='adam'"))), Advice)
