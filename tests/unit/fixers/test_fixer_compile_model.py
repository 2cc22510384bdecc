"""What the compile family of fixers makes of programs runs, and computes what it computed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from compile_programs import FLAT, FUNCTIONS, SWITCH, request

from diagnose.fixer import Advice, Edits, Site, example_request
from diagnose.plugins import load
from diagnose.source.settings.command_line import COMMAND_LINE, CommandLine

torch = pytest.importorskip("torch")
# Dynamo asks intermediate results for their gradients, of which torch warns.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
FIXERS = load().fixers


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
        ("        seen = ", "        self.calls = self.calls + 1\n        seen = ", "train.py:14 keeps a value"),
    ],
)
def test_methods_are_left_alone_where_they_do_more_or_the_module_is_copied(line: str, instead: str, why: str) -> None:
    answer = FIXERS["compile-model"].rewrite(request(AGENT.replace(line, instead, 1)))
    assert isinstance(answer, Advice)
    assert why in answer.text
    assert "`agent.act = torch.compile(…)`" in answer.text


def test_a_forward_pass_that_only_raises_is_none() -> None:
    raises = "    def forward(self):\n        raise NotImplementedError\n\n    def act("
    answer = FIXERS["compile-model"].rewrite(request(AGENT.replace("    def act(", raises)))
    assert isinstance(answer, Edits)
    assert "agent.act = torch.compile(agent.act)" in answer.files["train.py"]


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


_SECOND_PASS = "    loss = model(batch).mean()\n    loss.backward()\n    optimizer.step()\n"
_EITHER_PASS = "    if scaler is None:\n        loss.backward()\n    else:\n        scaler.scale(loss).backward()\n"


@pytest.mark.parametrize(
    ("old", "new", "recorded"),
    [
        ("    optimizer.step()\n", f"    optimizer.step()\n{_SECOND_PASS}", False),
        ("    loss.backward()\n", _EITHER_PASS, True),
    ],
    ids=["one after the other", "one or the other"],
)
def test_graphs_are_no_setting_where_backward_passes_follow_each_other(old: str, new: str, recorded: bool) -> None:
    """The graph of one model writes anew what another's pass has ended: torch then raises an error."""
    text = FLAT.replace(old, new)
    settings = FIXERS["compile-model"].settings(request(text, "launch-bound"))
    assert ({"compile": "whole", "mode": "reduce-overhead"} in settings) is recorded
    compiles = text.replace('model = model.to("cpu")', "model = torch.compile(model)")
    answer = FIXERS["cuda-graphs"].rewrite(request(compiles, "launch-bound"))
    assert isinstance(answer, Edits if recorded else Advice)


@pytest.mark.usefixtures("compiled")
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


@pytest.mark.parametrize("test", ["compile", "compile and model is not None"])
def test_graphs_are_recorded_of_what_is_compiled_and_not_of_what_a_switch_leaves_out(test: str) -> None:
    text = GLOBAL.replace("if compile:", f"if {test}:")
    rewrite = FIXERS["cuda-graphs"].rewrite
    assert not isinstance(rewrite(request(text, "launch-bound")), Edits)
    assert isinstance(rewrite(request(text.replace("compile = False", "compile = True"), "launch-bound")), Edits)


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
