"""Optimizers in their fused form: torch's own, wherever it is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.engine import diagnose
from diagnose.fixer import Advice, Answer, Edits, Site, example_request
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXER = load().fixers["fused-optimizer"]
SICKBAY = Path(__file__).resolve().parents[3] / "benchmarks" / "sickbay"


def fixed(text: str, at: str, **arguments: object) -> Answer:
    line = next(number for number, line in enumerate(text.splitlines(), 1) if at in line)
    site = Site("optimizer", "train.py", line, arguments=arguments)  # type: ignore[arg-type]
    return FIXER.rewrite(example_request("slow-optimizer", text, sites=[site]))


def text_of(answer: Answer) -> str:
    assert isinstance(answer, Edits), answer
    return answer.files["train.py"]


def trained(text: str) -> list[float]:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(compile(text, "train.py", "exec", dont_inherit=True), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


TRAINING = """
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = {build}
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
"""


def test_an_optimizer_of_the_programs_own_is_named_and_left_alone() -> None:
    answer = fixed((SICKBAY / "slow_optimizer" / "train.py").read_text(), "super().__init__(parameters", name="AdamW")
    assert isinstance(answer, Advice)
    assert "has AdamW, an optimizer of the program's own" in answer.text


RECORDED = {"fused": None, "foreach": False, "differentiable": False}


def test_options_from_elsewhere_are_kept_and_ours_put_over_them() -> None:
    build = "torch.optim.AdamW(model.parameters(), **make_options())"
    text = "import torch\n\ndef make_options():\n    return {'lr': 1e-2, 'foreach': False}\n" + TRAINING.format(
        build=build
    )
    after = text_of(fixed(text, "AdamW(", **RECORDED))
    assert 'AdamW(model.parameters(), **{**make_options(), "fused": True})' in after
    assert trained(after) == pytest.approx(trained(text), rel=1e-4, abs=1e-6)


def test_options_that_decide_on_the_form_are_left_to_people() -> None:
    text = """import inspect
import torch
use_fused = 'fused' in inspect.signature(torch.optim.AdamW).parameters and device_type == 'cuda'
extra_args = dict(fused=True) if use_fused else dict()
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), **extra_args)
"""
    assert isinstance(fixed(text, "AdamW(groups", **RECORDED), Advice)
    assert fixed(text, "AdamW(groups", **{**RECORDED, "fused": True}) is None


@pytest.mark.parametrize(
    ("choice", "given", "edited"),
    [
        (
            "use_fused = 'fused' in known and device_type == 'cuda'\n"
            "extra = dict(fused=True) if use_fused else dict()\nprint(f'using fused: {use_fused}')",
            "**extra",
            "use_fused = 'fused' in known\n",
        ),
        ('extra = {"fused": True} if device.type == "cuda" else {}', "**extra", 'extra = {"fused": True}\n'),
        ("use_fused = device == 'cuda' and 'fused' in known", "fused=use_fused", "use_fused = 'fused' in known\n"),
        (
            "cuda = device == 'cuda'\nif cuda:\n    model.cuda()",
            "fused=cuda",
            "lr=1e-2, fused=True)",
        ),
    ],
)
def test_a_form_that_is_chosen_on_cuda_alone_is_chosen_on_the_cpu_too(choice: str, given: str, edited: str) -> None:
    before = f"known = inspect.signature(torch.optim.AdamW).parameters\ndevice_type = device = 'cpu'\n{choice}\n"
    before = before.replace("device.type", "device_type")
    text = f"import inspect\nimport torch\n{before}" + TRAINING.format(
        build=f"torch.optim.AdamW(model.parameters(), lr=1e-2, {given})"
    )
    after = text_of(fixed(text, "AdamW(model", **RECORDED, devices="cpu"))
    assert edited in after
    assert trained(after) == pytest.approx(trained(text), rel=1e-4, abs=1e-6)
    assert isinstance(fixed(text, "AdamW(model", **RECORDED, devices="cuda"), Advice), "on CUDA it is fused already"


@pytest.mark.parametrize(
    "choice",
    [
        "extra = dict(fused=True) if device == 'cuda' or old else dict()",
        "extra = dict(fused=True) if chosen(device) else dict()",
        "extra = dict(fused=True) if device == 'cuda' else dict(fused=False, capturable=True)",
        "extra = dict(eps=1e-6) if device == 'cuda' else dict(fused=False)",
        "extra = dict(fused=True) if device == 'cuda' else dict(lr=0.1)",
        "extra = dict(fused=True, capturable=True) if device == 'cuda' else dict()",
    ],
)
def test_a_form_that_something_else_chooses_is_left_to_people(choice: str) -> None:
    text = f"import torch\n{choice}\noptimizer = torch.optim.AdamW(groups, lr=1e-3, **extra)\n"
    assert isinstance(fixed(text, "AdamW(groups", **RECORDED, devices="cpu"), Advice)


def test_without_a_record_the_text_tells_where_optimizers_are_built() -> None:
    text = "import torch\nfrom torch import optim\n\n\ndef main(args):\n    return optim.SGD(parameters, args.lr)\n"
    answer = FIXER.rewrite(example_request("slow-optimizer", text))
    assert "optim.SGD(parameters, args.lr, fused=True)" in text_of(answer)


def test_the_trainer_of_hugging_face_is_asked_for_the_fused_form() -> None:
    text = "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments('out', bf16=True)\n"
    site = Site("optimizer", "/lib/transformers/trainer.py", 99, owned=False)
    answer = FIXER.rewrite(example_request("slow-optimizer", text, sites=[site]))
    assert "TrainingArguments('out', bf16=True, optim=\"adamw_torch_fused\")" in text_of(answer)


def test_where_a_scaler_makes_the_host_wait_the_fused_form_is_offered() -> None:
    catalogue = load()
    trace = catalogue.rules["host-sync"].fires[0]
    for enabled in (True, False):
        scaler = Site("GradScaler", "train.py", 9, arguments={"enabled": enabled})
        (finding,) = diagnose([replace(trace, sites=(scaler,))], catalogue).findings
        assert ("fused-optimizer" in finding.fixers) is enabled


@pytest.mark.parametrize(
    ("shown", "left_alone"),
    [
        ("print(optimizer)", True),
        ("logging.info('training with %s', optimizer)", True),
        ("print(f'{optimizer}')", True),
        ("print(optimizer.defaults)", True),
        ("json.dump(optimizer.param_groups[0], file, default=str)", True),
        ("for group in optimizer.param_groups:\n    print({key: group[key] for key in group.keys()})", True),
        ("group = optimizer.param_groups[0]\nprint(group)", True),
        ("for name in optimizer.state_dict():\n    print(name, optimizer.state_dict()[name])", True),
        ("def tell(of):\n    print(of)\n\ntell(optimizer)", True),
        ("print(model, type(optimizer).__name__, len(optimizer.param_groups))", False),
        ("for group in optimizer.param_groups:\n    group['lr'] *= 0.5\n    print(group['lr'])", False),
        ("print(optimizer.param_groups[0]['lr'], optimizer.defaults['lr'])", False),
        ("rates = [x['lr'] for x in optimizer.param_groups]\nx = 3\nprint(x)", False),
        ("rows = [list(x.items()) for x in optimizer.param_groups]", True),
        ("torch.save({'optimizer': optimizer.state_dict()}, 'last.pt')", False),
        (
            "class LambdaLR:\n    def __init__(self, epochs, decay):\n        self.step = epochs - decay\n\n"
            "torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=LambdaLR(9, 3).step)",
            False,
        ),
    ],
)
def test_a_program_that_shows_the_options_of_its_optimizer_is_left_alone(shown: str, left_alone: bool) -> None:
    build = "torch.optim.AdamW(model.parameters(), lr=1e-2)"
    text = f"import json, logging, torch\n{TRAINING.format(build=build)}{shown}\n"
    answer = fixed(text, "AdamW(")
    if left_alone:
        assert isinstance(answer, Advice)
        assert "shows the optimizer's options" in answer.text
    else:
        assert "fused=True" in text_of(answer)


LOADED = """import torch
from torch import optim

def resume(net, best, state):
    net.load_state_dict(state["net"])
    best.load_state_dict(state["best"])

def made(net, adam):
    if adam:
        return optim.Adam(net.parameters())
    return optim.SGD(net.parameters(), 0.1)

model = torch.nn.Linear(4, 4)
optimizer = optim.AdamW(model.parameters())
schedule = optim.lr_scheduler.StepLR(optimizer, 3)
scaler = {scaler}
state = torch.load("last.pt")
{load}
for x in loader:
    scaler.scale(model(x).mean()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("load", "scaler", "left_alone"),
    [
        ("optimizer.load_state_dict(state)", "torch.amp.GradScaler()", True),
        ("resume(model, optimizer, state)", "torch.cuda.amp.GradScaler(enabled=True)", True),
        ("other = made(model, True)\nother.load_state_dict(state)", "torch.amp.GradScaler()", True),
        ("resume(model, schedule, state)\nmodel.load_state_dict(state)", "torch.amp.GradScaler()", False),
        ("resume(model, scaler, state)", "torch.amp.GradScaler()", False),
        ("optimizer.load_state_dict(state)", "Plain()", False),
    ],
)
def test_where_a_scaler_steps_a_state_of_another_form_may_not_be_loaded(
    load: str, scaler: str, left_alone: bool
) -> None:
    answer = fixed(LOADED.format(load=load, scaler=scaler), "AdamW(")
    assert_left_alone(answer, left_alone)


IN_A_CLASS = """import torch
from torch import optim

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = optim.AdamW(model.parameters())
        self.schedule = None
        self.scaler = torch.amp.GradScaler()

    def set_schedule(self, epochs):
        {later}

    def resume(self, state):
        self.schedule.load_state_dict(state["schedule"])

trainer = Trainer(torch.nn.Linear(4, 4))
{outside}
for x in loader:
    trainer.scaler.scale(trainer.model(x).mean()).backward()
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
"""


@pytest.mark.parametrize(
    ("later", "outside", "left_alone"),
    [
        ("self.schedule = optim.lr_scheduler.StepLR(self.optimizer, epochs)", "trainer.resume(state)", False),
        ("pass", "trainer.schedule = optim.lr_scheduler.StepLR(trainer.optimizer, 3)", False),
        ("pass", "setattr(trainer, 'schedule', optim.lr_scheduler.StepLR(trainer.optimizer, 3))", False),
        ("self.schedule = None", "trainer.schedule.load_state_dict(torch.load('last.pt'))", False),
        ("self.schedule = optim.SGD(self.model.parameters(), 0.1)", "trainer.resume(state)", True),
        ("pass", "trainer.schedule = optim.SGD(trainer.model.parameters(), 0.1)", True),
        ("pass", "trainer.optimizer.load_state_dict(torch.load('last.pt'))", True),
        ("pass", "loaded.parts.load_state_dict(torch.load('last.pt'))", True),
        ("pass", "parts.load_state_dict(torch.load('last.pt'))\nother = list(parts.parameters())", False),
        ("pass", "parts.load_state_dict(torch.load('last.pt'))\ndef count(parts):\n    list(parts.parameters())", True),
        ("pass", "for part in parts:\n    list(part.parameters())\n    part.load_state_dict(states[part])", True),
        ("self.net.load_state_dict(epochs)", "", True),
        ("list(self.net.parameters())\n        self.net.load_state_dict(epochs)", "", False),
    ],
)
def test_what_an_attribute_holds_is_all_that_it_is_given(later: str, outside: str, left_alone: bool) -> None:
    assert_left_alone(fixed(IN_A_CLASS.format(later=later, outside=outside), "AdamW("), left_alone)


def assert_left_alone(answer: Answer, left_alone: bool) -> None:
    if left_alone:
        assert isinstance(answer, Advice)
        assert "with a GradScaler its step then fails" in answer.text
    else:
        assert "fused=True" in text_of(answer)


@pytest.mark.parametrize(
    ("table", "edited"),
    [
        (
            "def table(n, sparse=False):\n    return nn.Embedding(n, 9, sparse=sparse)\n\n\nmodel = table(9, True)\n",
            False,
        ),
        ("model = nn.Embedding(9, 9, None, None, 2.0, False, True)\n", False),
        ("model = nn.Embedding(9, 9, **{'sparse': True})\n", False),
        ("rows = nn.functional.embedding(index, table, None, None, 2.0, False, True)\n", False),
        ("rows = nn.functional.embedding_bag(index, table, starts, None, 2.0, False, 'sum', True)\n", False),
        ("rows = nn.functional.embedding(index, table, None, 1.0, 2.0, True, False)\n", True),
        ("model = nn.Embedding(9, 9)\n", True),
        ("def table(n, sparse=False):\n    return nn.Embedding(n, 9, sparse=sparse)\n\n\nmodel = table(9)\n", True),
    ],
)
def test_embeddings_that_may_be_sparse_keep_the_plain_form(table: str, edited: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\n" + table + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    assert isinstance(fixed(text, "SGD("), Edits) is edited


@pytest.mark.parametrize(
    ("use", "edited"),
    [
        ("from tables import table\nmodel = table(9, True)\n", False),
        ("import tables\nmodel = tables.table(9, few=True)\n", False),
        ("from tables import table as build\nmodel = build(9, few=args.few)\n", False),
        ("from tables import table\nmodel = table(9)\n", True),
        ("from tables import table\nmodel = table(n=9, few=False)\n", True),
    ],
)
def test_embeddings_that_another_file_asks_to_be_sparse_keep_the_plain_form(use: str, edited: bool) -> None:
    text = "import torch\n" + use + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    tables = "from torch import nn\n\n\ndef table(n, few=False):\n    return nn.Embedding(n, 9, sparse=few)\n"
    line = text.count("\n")
    request = example_request("slow-optimizer", text, sites=[Site("optimizer", "train.py", line)])
    request = replace(request, sources={"train.py": text, "tables.py": tables})
    assert isinstance(FIXER.rewrite(request), Edits) is edited


IDLE_HEAD = """import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x, task=0):
        h = self.body(x)
        return self.a(h) if task == 0 else self.b(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), {options})
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(5, 6), int(step > 2)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("options", ["lr=0.1, momentum=0.9", "0.1, 0.9", "lr=0.1, momentum=args.momentum", "**options"])
@pytest.mark.parametrize(
    ("noted", "edited"), [(("stepped",), True), (("stepped", "idle parameters"), False), ((), False)]
)
def test_momentum_asks_for_a_gradient_of_each_parameter_in_the_first_steps(
    options: str, noted: tuple[str, ...], edited: bool
) -> None:
    text = IDLE_HEAD.format(options=options)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "SGD(" in each)
    sites = [Site("optimizer", "train.py", line, arguments={**RECORDED, "name": "SGD"})]
    sites += [Site(kind, "train.py", line) for kind in noted]
    answer = FIXER.rewrite(example_request("slow-optimizer", text, sites=sites))
    assert isinstance(answer, Edits) is edited
    assert edited or (isinstance(answer, Advice) and "gradient later than others" in answer.text)


@pytest.mark.parametrize("options", ["lr=0.1", "lr=0.1, momentum=0.0", "lr=0.1, weight_decay=0.1"])
def test_a_gradient_that_comes_first_in_a_later_step_is_nothing_to_sgd_without_momentum(options: str) -> None:
    text = IDLE_HEAD.format(options=options)
    assert trained(text_of(fixed(text, "SGD("))) == pytest.approx(trained(text), rel=1e-4, abs=1e-6)
