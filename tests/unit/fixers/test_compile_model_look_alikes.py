"""Forward passes, switches and models that `compile-model` leaves alone, and those beside them that it takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from compile_programs import FLAT, FUNCTIONS, SWITCH, request

from diagnose.fixer import Advice, Edits, Site
from diagnose.plugins import load

FIXERS = load().fixers


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
_OF_TIMM = _SCALER.format(False, f"loss, optimizer, {_OF_AN_OPTIMIZER}")
_SECOND_ORDER = "class Newton(torch.optim.SGD):\n    is_second_order = True\n"


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
        ("        return torch", "        self.kept = x\n        return torch", True),
        ("        return torch", "        self.kept += x\n        return torch", False),
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
        ("optimizer =", "import timm.optim\n" + _OF_TIMM, False),
        ("optimizer =", "from timm import optim\n" + _OF_TIMM, False),
        ("optimizer =", "import timm as models\nmodels.optim.Adahessian\n" + _OF_TIMM, False),
        ("optimizer =", "import timm\n" + _OF_TIMM, True),
        ("optimizer =", "from timm.optim.adahessian import Adahessian\n" + _OF_TIMM, False),
        ("optimizer =", "from timm.models import create_model  # not timm.optim\n" + _OF_TIMM, True),
        ("        return torch", "        x = x.to(next(self.parameters()).device)\n        return torch", True),
        ("        return torch", "        x = x + next(iter({'x': x}.values()))\n        return torch", True),
        ("        return torch", "        x = x + next(self.noise)\n        return torch", False),
        ("        return torch", "        x = x * next(iter(self.scales))\n        return torch", False),
        ("        return torch", "        x = x * next(iter([1.0, 2.0]))\n        return torch", True),
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


_HELPED = """
import torch, torchmetrics, torchvision
from torch import nn
from transformers import AutoImageProcessor
class Plain:
    def __call__(self, x):
        return x
class Base(nn.Module):
    def forward(self, x):
        return x
class Own(Base):
    pass
model = nn.Linear(4, 1)
encoder = {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches:
    loss = nn.functional.mse_loss(model(encoder(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "compiled"),
    [
        ("Own().to('cpu').eval()", True),
        ("nn.Sequential(nn.Linear(4, 4))", True),
        ("torchvision.models.resnet18(weights=None)", True),
        ("Own()\nencoder = prepare(encoder)", True),
        ("Plain()", False),
        ("AutoImageProcessor.from_pretrained('vit')", False),
        ("torchvision.models.ResNet18_Weights.DEFAULT.transforms()", False),
        ("torchmetrics.Accuracy()", False),
        ("nn.Parameter(torch.ones(4))", False),
        ("lambda x: Own()(x)", False),
        ("Own()\nencoder = Plain()", False),
    ],
)
def test_beside_the_model_that_learns_only_modules_are_compiled(made: str, compiled: bool) -> None:
    answer = FIXERS["compile-model"].rewrite(request(_HELPED.format(made)))
    assert isinstance(answer, Edits)
    assert "\nmodel.compile()\n" in answer.files["train.py"]
    assert ("encoder.compile()" in answer.files["train.py"]) is compiled


def test_what_is_called_first_is_no_model_for_that() -> None:
    text = _HELPED.format("Plain()").replace("model(encoder(x))", "encoder(model(x))")
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)
    assert "encoder.compile()" not in answer.files["train.py"]
    assert "\nmodel.compile()\n" in answer.files["train.py"]


@pytest.mark.parametrize("method", ["train()", "train().requires_grad_()", "cuda()"])
def test_a_model_is_compiled_where_it_is_built_not_in_the_turns_that_set_its_mode(method: str) -> None:
    text = FLAT.replace("for batch in batches:\n", f"for batch in batches:\n    model = model.{method}\n")
    answer = FIXERS["compile-model"].rewrite(request(text))
    assert isinstance(answer, Edits)
    assert 'model = model.to("cpu")\nmodel.compile()\noptimizer' in answer.files["train.py"]


@pytest.mark.parametrize(
    ("built", "edited"), [(["AdamW"], True), (["AdamW", "Adahessian"], False), (["Adahessian"], False)]
)
def test_what_an_optimizer_may_want_counts_where_the_run_built_one_that_does(built: list[str], edited: bool) -> None:
    text = FLAT.replace("optimizer =", "from timm.optim.adahessian import Adahessian\n" + _OF_TIMM)
    sites = [Site("optimizer", "optim.py", line, arguments={"name": name}) for line, name in enumerate(built)]
    answer = FIXERS["compile-model"].rewrite(replace(request(text), sites=sites))
    assert isinstance(answer, Edits if edited else Advice)


_HANDED_ON = """
import torch

def train(nets, optimizer, batches):
    net, critic = nets
    for batch in batches:
        loss = critic(net(batch)).mean()
        loss.backward()
        optimizer.step()

def main():
    net = torch.nn.Linear(8, 8)
    critic = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()])
    net = torch.nn.parallel.DistributedDataParallel(net)
    for epoch in range(9):
        train({given}, optimizer, [torch.randn(4, 8)])

main()
"""


def test_models_that_are_handed_on_in_a_list_are_compiled_where_they_are_built() -> None:
    answer = FIXERS["compile-model"].rewrite(request(_HANDED_ON.replace("{given}", "[net, critic]")))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert "    net = torch.nn.Linear(8, 8)\n    net.compile()\n" in text
    assert "    critic = torch.nn.Linear(8, 1)\n    critic.compile()\n" in text
    assert text.count(".compile()") == 2


@pytest.mark.parametrize("given", ["nets", "load()", "[net, critic, None]"])
def test_models_that_come_from_a_caller_who_does_not_show_them_are_left_alone(given: str) -> None:
    answer = FIXERS["compile-model"].rewrite(request(_HANDED_ON.replace("{given}", given)))
    assert isinstance(answer, Advice)


@pytest.mark.parametrize(
    ("built", "compiled"),
    [
        ("nets = Net(), Net()\nmodel, critic = nets", "model"),
        ("nets = build()\nmodel, = nets", "model"),
        ("net = Net()\nmodel = net", "net"),
        ("net = Net()\nmodel = net\nnet = Net()", "model"),
    ],
)
def test_what_a_model_is_taken_out_of_is_no_model(built: str, compiled: str) -> None:
    line = 'model = Net()\nmodel = model.to("cpu")\n'
    assert line in FLAT
    answer = FIXERS["compile-model"].rewrite(request(FLAT.replace(line, built + "\n")))
    assert isinstance(answer, Edits)
    assert re.findall(r"(\w+)\.compile\(\)", answer.files["train.py"]) == [compiled]


def test_an_optimizer_is_no_module_with_a_method_of_that_name() -> None:
    policy = "class Policy(nn.Module):\n    def step(self, x):\n        return self.inner(x)\n\n"
    text = FLAT.replace("class Net", policy + "class Net").replace("model(batch)", "cost_of(batch)")
    assert isinstance(FIXERS["compile-model"].rewrite(request(text)), Advice)


def test_a_switch_of_a_script_that_trains_nothing_stays_off() -> None:
    chat = (
        "import torch\n\n\ndef main(compile: bool = False):\n    model = build()\n"
        "    if compile:\n        model = torch.compile(model)\n    return model\n"
    )
    asked = request(FLAT.replace('model = model.to("cpu")', "model = torch.compile(model)"))
    beside = replace(asked, sources={**asked.sources, "chat.py": chat})
    assert FIXERS["compile-model"].rewrite(beside) is None
    answer = FIXERS["compile-model"].rewrite(replace(beside, sources={"chat.py": chat}))
    assert isinstance(answer, Edits)


def test_a_model_that_a_step_takes_out_of_its_argument_is_not_compiled_in_each_step() -> None:
    step = (
        "import torch\nfrom torch import nn\n\n\ndef step(state, batch):\n    model = state['model']\n"
        "    loss = model(batch).mean()\n    loss.backward()\n    state['optimizer'].step()\n\n\n"
        "net = nn.Linear(8, 8)\nstate = {'model': net, 'optimizer': torch.optim.SGD(net.parameters(), 0.1)}\n"
        "for batch in batches:\n    step(state, batch)\n"
    )
    assert isinstance(FIXERS["compile-model"].rewrite(request(step)), Advice)
    built = step.replace("state['model']", "nn.Linear(8, 8)")
    assert isinstance(FIXERS["compile-model"].rewrite(request(built)), Edits)


@pytest.mark.parametrize(
    ("step", "compiled"),
    [
        ("with torch.no_grad():\n        batch = sample(engine, batch)\n    loss = policy(batch).mean()", None),
        ("loss = (policy(batch) * rated(engine, batch)).mean()", None),
        ("loss = cost(model, batch).mean()", "model"),
        ("with torch.no_grad():\n        batch = sample(engine, batch)\n    loss = cost(model, batch).mean()", "model"),
    ],
)
def test_what_a_step_hands_to_a_function_is_a_model_where_it_is_seen_to_be_a_module(
    step: str, compiled: str | None
) -> None:
    text = FLAT.replace("loss = model(batch).square().mean()", step)
    text = text.replace("optimizer =", "engine = build_engine(model)\npolicy = model\noptimizer =")
    answer = FIXERS["compile-model"].rewrite(request(text))
    edited = answer.files["train.py"] if isinstance(answer, Edits) else ""
    assert re.findall(r"(\w+)\.compile\(\)", edited) == ([compiled] if compiled else [])
