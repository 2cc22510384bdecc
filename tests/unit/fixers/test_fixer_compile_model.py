"""What the compile family of fixers makes of programs runs, and computes what it computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from diagnose.fixer import Advice, Edits, Facts, Request, Site, example_request
from diagnose.plugins import load
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine

torch = pytest.importorskip("torch")
# Dynamo asks intermediate results for their gradients, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FIXERS = load().fixers

FLAT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.inner(x)) * 0.5 + x

torch.manual_seed(0)
model = Net()
model = model.to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(4, 8) for _ in range(4)]
for batch in batches:
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
result, keys = loss.item(), list(model.state_dict())
"""

TRAINER = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(x))

class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

class Trainer:
    def __init__(self, layers):
        torch.manual_seed(0)
        self.model = Net(8, layers).to("cpu")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def fit(self):
        for batch in torch.randn(4, 4, 8):
            loss = self.step(batch)
        return loss.item()

trainer = Trainer(2)
result, keys = trainer.fit(), list(trainer.model.state_dict())
"""

FUNCTIONS = """
import torch
from torch import nn

def train(net, critic, batches):
    for batch in batches:
        fake = net(batch)
        cost = critic(fake).mean() - critic(batch.flip(0)).square().mean()
        cost.backward()
    return cost

def main():
    torch.manual_seed(0)
    wide = True
    if wide:
        net = nn.Linear(8, 8)
    else:
        net = nn.Linear(8, 4)
    critic = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 1))
    return train(net, critic, [torch.randn(4, 8) for _ in range(3)]).item(), list(net.state_dict())

result, keys = main()
"""


AGENT = """
import copy
import random
import torch
from torch import nn
from torch.distributions import Categorical

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)

    def act(self, x, action=None):
        seen = Categorical(logits=self.actor(x))
        if action is None:
            action = seen.sample()
        return action, seen.log_prob(action), self.critic(x)

torch.manual_seed(0)
agent = Agent()
optimizer = torch.optim.SGD(agent.parameters(), lr=0.1)
batches = [torch.randn(4, 8) for _ in range(4)]
for batch in batches:
    with torch.no_grad():
        value = agent.act(batch, torch.zeros(4))[2]
    _, likely, value = agent.act(batch, torch.ones(4))
    loss = value.square().mean() - likely.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
result, keys = loss.item(), list(agent.state_dict())
"""
"""A step calls a method of the model, which has no `forward`."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """torch.compile without a C++ compiler; what was compiled."""
    seen: list[object] = []
    real = torch.compile

    @functools.wraps(real)
    def traced(model: Any = None, **options: Any) -> Any:
        seen.append(model)
        options.pop("mode", None)
        return real(model, **{**options, "backend": "aot_eager"})

    monkeypatch.setattr(torch, "compile", traced)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


def run(text: str) -> dict[str, Any]:
    program = ModuleType("program")
    sys.modules["program"] = program  # where the compiler looks for what a method names
    exec(compile(text, "train.py", "exec", dont_inherit=True), program.__dict__)
    return program.__dict__


_SCALER = """
class Scaler:
    def __call__(self, loss, optimizer, second_order={}):
        loss.backward(create_graph=second_order)
        optimizer.step()
scale = Scaler()
def update(loss, optimizer, again=None):
    scale({})
optimizer ="""
"""A helper that takes gradients of gradients where it is told to."""
_OF_AN_OPTIMIZER = "hasattr(optimizer, 'is_second_order') and optimizer.is_second_order"
_SECOND_ORDER = "class Newton(torch.optim.SGD):\n    is_second_order = True\n"


def request(text: str, rule: str = "unfused-pointwise") -> Request:
    return example_request(rule, text, facts=Facts(device_name="NVIDIA H200", device_capability=(9, 0)))


@pytest.mark.parametrize("program", [FLAT, TRAINER, FUNCTIONS, AGENT], ids=["flat", "trainer", "functions", "methods"])
def test_a_compiled_program_computes_the_same_and_keeps_the_keys_of_its_checkpoints(
    compiled: list[object], program: str
) -> None:
    fixer, asked = FIXERS["compile-model"], request(program)
    before = run(program)
    for setting in fixer.settings(asked):
        answer = fixer.rewrite(replace(asked, setting=setting))
        assert isinstance(answer, Edits)
        compiled.clear()
        after = run(answer.files["train.py"])
        assert after["result"] == pytest.approx(before["result"], rel=1e-5)
        assert after["keys"] == before["keys"]
        assert compiled


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    [
        ("optimizer = ", "target = copy.deepcopy(agent)\noptimizer = ", "train.py:21 copies or pickles a module"),
        ("optimizer = ", "torch.save({'agent': agent}, 'at.pt')\noptimizer = ", "train.py:21 copies or pickles"),
        ("        seen = ", "        random.random()\n        seen = ", "train.py:14 draws random numbers"),
        ("        seen = ", "        self.seen = seen = ", "train.py:14 keeps a value"),
    ],
)
def test_methods_are_left_alone_where_they_do_more_or_the_module_is_copied(line: str, instead: str, why: str) -> None:
    answer = FIXERS["compile-model"].rewrite(request(AGENT.replace(line, instead, 1)))
    assert isinstance(answer, Advice)
    assert why in answer.text
    assert "`agent.act = torch.compile(…)`" in answer.text


def test_a_checkpoint_of_the_weights_alone_is_no_copy() -> None:
    text = AGENT + "torch.save(agent.state_dict(), 'at.pt')\n"
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)


def test_each_block_is_compiled_where_blocks_repeat(compiled: list[object]) -> None:
    fixer, asked = FIXERS["compile-model"], request(TRAINER)
    assert {"compile": "blocks"} in fixer.settings(asked)
    answer = fixer.rewrite(replace(asked, setting={"compile": "blocks"}))
    assert isinstance(answer, Edits)
    assert "for block in self.model.blocks:\n            block.compile()\n" in answer.files["train.py"]
    run(answer.files["train.py"])
    assert len(compiled) == 2


def test_graphs_are_a_setting_where_the_device_waits_for_launches_and_lengths_are_fixed() -> None:
    settings = FIXERS["compile-model"].settings
    graphs: Mapping[str, str] = {"compile": "whole", "mode": "reduce-overhead"}
    assert graphs not in settings(request(FLAT))
    assert graphs in settings(request(FLAT, "launch-bound"))
    padded = FLAT.replace("batches = [", "collate = nn.utils.rnn.pad_sequence([torch.ones(2)])\nbatches = [")
    assert graphs not in settings(request(padded, "launch-bound"))


def test_a_mask_that_a_forward_pass_makes_once_stays_what_it_is_and_is_not_recorded_in_graphs() -> None:
    masked = FLAT.replace("        self.inner =", "        self.mask = None\n        self.inner =").replace(
        "        return torch.tanh(self.inner(x))",
        "        if self.mask is None or self.mask.size(0) != len(x):\n"
        "            self.mask = torch.tril(torch.ones(len(x), 8))\n"
        "        return torch.tanh(self.inner(x)) * self.mask",
    )
    masked = masked.replace("range(4)]", "range(4)] + [torch.randn(2, 8)]")
    answer = FIXERS["compile-model"].rewrite(request(masked))
    assert isinstance(answer, Edits)
    assert "model.compile()" in answer.files["train.py"]
    before, after = run(masked), run(answer.files["train.py"])
    assert after["result"] == pytest.approx(before["result"])
    assert after["model"].mask.shape == (2, 8)
    settings = FIXERS["compile-model"].settings(request(masked, "launch-bound"))
    assert {"compile": "whole", "mode": "reduce-overhead"} not in settings


def test_lengths_that_vary_are_told_to_the_compiler() -> None:
    padded = FLAT.replace("batches = [", "collate = nn.utils.rnn.pad_sequence([torch.ones(2)])\nbatches = [")
    answer = FIXERS["compile-model"].rewrite(request(padded))
    assert isinstance(answer, Edits)
    assert "model.compile(dynamic=True)" in answer.files["train.py"]


SWITCH = """
import argparse
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
if args.compile:
    model = torch.compile(model)
for batch in data:
    model(batch).mean().backward()
"""


def test_a_switch_of_the_programs_own_is_turned_on_and_can_still_be_turned_off() -> None:
    answer = FIXERS["compile-model"].rewrite(request(SWITCH))
    assert isinstance(answer, Edits)
    assert "action=argparse.BooleanOptionalAction, default=True" in answer.files["train.py"]
    assert "model.compile()" not in answer.files["train.py"]


GLOBAL = """
import torch
compile = False # use PyTorch 2.0 to compile the model to be faster
exec(open('configurator.py').read())
model = torch.nn.Linear(4, 4)
if compile:
    model = torch.compile(model)
while True:
    logits, loss = model(x, y)
    loss.backward()
"""


def test_a_global_switch_is_turned_on_where_it_is_off() -> None:
    rewrite = FIXERS["compile-model"].rewrite
    answer = rewrite(request(GLOBAL))
    assert isinstance(answer, Edits)
    assert "\ncompile = True # use PyTorch 2.0" in answer.files["train.py"]
    words = ("train.py", "--compile=False")
    told = rewrite(replace(request(GLOBAL), words=CommandLine(words, 1)))
    assert isinstance(told, Edits)
    assert told.files == {COMMAND_LINE: "train.py\n--compile=True\n"}
    beside = rewrite(replace(request(GLOBAL), words=words))
    assert isinstance(beside, Edits)
    assert "\nelse:\n    model.compile()\nwhile True" in beside.files["train.py"]


TRAINED = """
def epoch(model, batches, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

def fit(model, batches, optimizer):
    for _ in range(3):
        epoch(model, batches, optimizer)
    return model

def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = fit(model, batches, optimizer)
    torch.save(model.state_dict(), "model.pt")
"""


def test_a_model_that_training_gives_back_is_compiled_before_it_is_trained() -> None:
    answer = FIXERS["compile-model"].rewrite(request(f"import torch\n{TRAINED}"))
    assert isinstance(answer, Edits)
    assert "    model = Net()\n    model.compile()\n    optimizer" in answer.files["train.py"]


BREAKS = """
import logging
import torch

logger = logging.getLogger(__name__)

def forward(x):
    y = torch.tanh(x)
    logger.debug("after tanh: %s", tuple(y.shape))
    y = y * 2
    return y + 1

step = torch.compile(forward, fullgraph=FULL)
x = torch.arange(4.0)
result = step(x).tolist()
"""


@pytest.mark.usefixtures("compiled")
def test_a_function_without_its_hidden_messages_is_one_graph_with_the_same_values() -> None:
    lines = [number for number, line in enumerate(BREAKS.splitlines(), 1) if "logger.debug" in line]
    sites = [Site("graph_break", "train.py", line, arguments={"reason": "logging"}) for line in lines]
    answer = FIXERS["remove-graph-break"].rewrite(example_request("graph-breaks", BREAKS, sites=sites))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert "logging" not in text
    before = run(BREAKS.replace("FULL", "False"))
    after = run(text.replace("FULL", "True"))  # raises where the graph breaks
    assert after["result"] == before["result"]


@pytest.mark.parametrize(
    "shown",
    [
        "logging.basicConfig(level=logging.DEBUG)",
        "logger.setLevel(args.level)",
        "logging.config.dictConfig(settings)",
    ],
)
def test_a_message_stays_where_the_program_may_show_it(shown: str) -> None:
    text = BREAKS.replace("\ndef forward", f"{shown}\n\ndef forward")
    line = text[: text.index("logger.debug")].count("\n") + 1
    sites = [Site("graph_break", "train.py", line, arguments={"reason": "logging"})]
    answer = FIXERS["remove-graph-break"].rewrite(example_request("graph-breaks", text, sites=sites))
    assert isinstance(answer, Advice)
    assert "it is shown" in answer.text


def test_a_message_stays_where_making_it_does_something_or_nothing_is_compiled() -> None:
    counting = BREAKS.replace("tuple(y.shape)", "next(counter)")
    plain = BREAKS.replace("torch.compile(forward, fullgraph=FULL)", "forward")
    for text in (counting, plain):
        line = text[: text.index("logger.debug")].count("\n") + 1
        answer = FIXERS["remove-graph-break"].rewrite(example_request("graph-breaks", text, lines=[line]))
        assert not isinstance(answer, Edits)


SIZES = """
import torch

def gated(x):
    return torch.tanh(x) * x

activation = torch.compile(gated, dynamic=False)
result = [activation(torch.ones(3, length)).sum().item() for length in range(4, 9)]
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
"""


@pytest.mark.usefixtures("compiled")
def test_one_compilation_serves_all_sizes() -> None:
    sites = [Site("recompile", "train.py", 4, function="gated", arguments={"reason": "tensor 'x' size mismatch"})]
    answer = FIXERS["mark-dynamic"].rewrite(example_request("recompiling", SIZES, sites=sites))
    assert isinstance(answer, Edits)
    torch._dynamo.utils.counters.clear()
    before = run(SIZES)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    after = run(answer.files["train.py"])
    assert after["result"] == pytest.approx(before["result"])
    assert (before["graphs"], after["graphs"]) == (5, 1)


@pytest.mark.parametrize(
    ("before", "after", "edited"),
    [
        ("return torch.tanh", "return torch.sin", True),
        ("result, keys", "print(type(model).__name__, isinstance(model, Net), model)\nresult, keys", True),
        ("result, keys", "torch.save(model.state_dict(), 'model.pt')\nresult, keys", True),
        ("        return torch", "        print(x.mean())\n        return torch", False),
        ("        return torch", "        self.calls += 1\n        return torch", False),
        ("        return torch", "        seen.append(x)\n        return torch", False),
        ("        return torch", "        seen.add(x)\n        return torch", False),
        ("        return torch", "        x = torch.add(x, x.add(1))\n        return torch", True),
        ("        return torch", "        self.kept = x\n        return torch", False),
        ("        return torch", "        if x.mean() > 0:\n            self.kept = x\n        return torch", False),
        (
            "        return torch",
            "        if random.random() < 0.5:\n            return x\n        return torch",
            False,
        ),
        ("        return torch", "        x = x + numpy.random.rand()\n        return torch", False),
        ("optimizer =", "model.register_forward_hook(see)\noptimizer =", False),
        ("optimizer =", "model.inner.register_full_backward_hook(see)\noptimizer =", False),
        ("optimizer =", "model.inner.weight.register_hook(see)\noptimizer =", True),
        ("optimizer =", "# create_graph=True is not needed\noptimizer =", True),
        ("optimizer =", _SCALER.format(False, "loss, optimizer"), True),
        ("optimizer =", _SCALER.format(False, "loss, optimizer, True"), False),
        ("optimizer =", _SCALER.format(False, "loss, optimizer, second_order=again"), False),
        ("optimizer =", _SCALER.format(True, "loss, optimizer"), False),
        ("optimizer =", _SCALER.format(False, f"loss, optimizer, second_order={_OF_AN_OPTIMIZER}"), True),
        ("optimizer =", _SECOND_ORDER + _SCALER.format(False, f"loss, optimizer, {_OF_AN_OPTIMIZER}"), False),
        ("optimizer =", "import timm.optim\n" + _SCALER.format(False, f"loss, optimizer, {_OF_AN_OPTIMIZER}"), False),
        ("        return torch", "        x = x.to(next(self.parameters()).device)\n        return torch", True),
        ("        return torch", "        x = x + next(iter({'x': x}.values()))\n        return torch", True),
        ("        return torch", "        x = x + next(self.noise)\n        return torch", False),
        ("optimizer =", "body = IntermediateLayerGetter(model, {'inner': '0'})\noptimizer =", True),
    ],
)
def test_a_forward_pass_that_does_more_than_compute_is_left_alone(before: str, after: str, edited: bool) -> None:
    text = "import random\nimport numpy\n" + FLAT.replace(before, after, 1)
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits if edited else Advice)
    assert edited or "train.py:" in getattr(answer, "text", "")


@pytest.mark.parametrize(
    ("use", "on"),
    [
        ("torch.save(optimizer.state_dict(), 'optimizer.pt')", True),
        ("print(loss)", True),
        ("torch.save(model.state_dict(), 'model.pt')", False),
        ("raw = model.module if ddp else model\ntorch.save({'model': raw.state_dict()}, 'model.pt')", False),
        ("model.load_state_dict(torch.load('model.pt'))", False),
        ("def keep(net):\n    torch.save(net.state_dict(), 'model.pt')\nkeep(model)", False),
        ("print(model)", False),
        ("print(type(model).__name__)", False),
        ("assert isinstance(model, torch.nn.Linear)", False),
        ("average = copy.deepcopy(model)", False),
        ("torch.save(model, 'model.pt')", False),
    ],
)
def test_a_switch_that_changes_what_is_saved_or_asked_is_left_off(use: str, on: bool) -> None:
    answer = FIXERS["compile-model"].rewrite(request(SWITCH + use + "\n"))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert ("default=True" in text) is on
    assert ("\nelse:\n    model.compile()\nfor batch" in text) is not on


def test_a_switch_that_prints_is_left_off() -> None:
    text = SWITCH.replace("args.compile:\n", "args.compile:\n    print('compiling')\n")
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)
    assert "\nelse:\n    model.compile()\nfor batch" in answer.files["train.py"]


def test_where_compiling_in_place_is_no_way_a_switch_that_changes_what_is_saved_is_told_of() -> None:
    text = SWITCH + "torch.save(model.state_dict(), 'model.pt')\nmodel.register_forward_hook(see)\n"
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert "_orig_mod." in getattr(answer, "text", "")


_CRITICS = """
import torch
from torch import nn

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(4, 1)

    def forward(self, x):
        return self.value(x)

first = Critic()
second = Critic()
target = Critic()
unused = Critic()
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
for x, y in batches:
    with torch.no_grad():
        wanted = y + target(x)
    loss = nn.functional.mse_loss(first(x), wanted) + nn.functional.mse_loss(second(x), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_twins_of_a_model_that_a_step_calls_are_compiled_too() -> None:
    answer = FIXERS["compile-model"].rewrite(request(_CRITICS))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert [name for name in ("first", "second", "target", "unused") if f"{name}.compile()" in text] == [
        "first",
        "second",
        "target",
    ]


def test_all_models_whose_outputs_reach_the_loss_are_compiled() -> None:
    text = FUNCTIONS.replace("        cost.backward()\n", "        cost.backward()\n        critic.zero_grad()\n")
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)
    assert "    net.compile()\n" in answer.files["train.py"]
    assert "    critic.compile()\n" in answer.files["train.py"]


def test_what_is_given_the_model_and_is_none_itself_is_not_compiled() -> None:
    text = FLAT.replace("loss = model(batch).square().mean()", "loss = cost(model, batch)").replace(
        "optimizer = ", "cost = Cost()\noptimizer = "
    )
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)
    assert "model.compile()" in answer.files["train.py"]
    assert "cost.compile()" not in answer.files["train.py"]


def test_only_torchscript_of_the_models_own_files_stands_in_the_way() -> None:
    beside = "import torch\n\nclass Other(torch.jit.ScriptModule):\n    pass\n"
    asked = request(_CRITICS.replace("import torch\n", "import torch\nimport others\n", 1))
    with_other = replace(asked, sources={**asked.sources, "others.py": beside})
    assert isinstance(FIXERS["compile-model"].rewrite(with_other), Edits)
    scripted = FIXERS["compile-model"].rewrite(
        request(_CRITICS.replace("target = Critic()", "target = torch.jit.script(Critic())"))
    )
    assert isinstance(scripted, Advice)
    assert "train.py:15 uses TorchScript" in scripted.text


PAIR = """import torch
from torch import nn


class Encoder(nn.Module):
    def forward(self, x):
        return x.tanh()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x):
        h = x[:, 0]
        for t in range({turns}):
            h = self.cell(x[:, t], h)
        return h


encoder, decoder = Encoder(), Decoder()
optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
for step in range(3):
    loss = decoder(encoder(torch.randn(4, 5, 8))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("turns", "edited"), [("3", True), ("x.size(1)", False)])
def test_each_of_two_models_on_a_line_is_judged_by_its_own_class(turns: str, edited: bool) -> None:
    assert isinstance(FIXERS["compile-model"].rewrite(request(PAIR.format(turns=turns))), Edits) is edited
