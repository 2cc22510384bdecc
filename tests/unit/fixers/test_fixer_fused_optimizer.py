"""Optimizers in their fused form: torch's own, wherever it is built, and classes that compute what torch's do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import libcst as cst
import pytest

from diagnose.engine import diagnose
from diagnose.fixer import Advice, Answer, Edits, Site, example_request
from diagnose.plugins import load
from diagnose.source.optimizers.optimizer_formula import known_optimizer
from diagnose.source.tree.edits import parse

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

PAPER = '''import torch
from torch.optim import Optimizer


class MyAdam(Optimizer):
    """After the paper."""

    def __init__(self, params, learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8):
        if learning_rate < 0.0:
            raise ValueError("negative")
        super(MyAdam, self).__init__(params, dict(lr=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p.data, memory_format=torch.preserve_format)
                    state["v"] = torch.zeros_like(p.data)
                m, v = state["m"], state["v"]
                state["step"] += 1
                m.mul_(group["beta1"]).add_(grad, alpha=1 - group["beta1"])
                v.mul_(group["beta2"]).addcmul_(grad, grad, value=1 - group["beta2"])
                first = 1 - group["beta1"] ** state["step"]
                second = 1 - group["beta2"] ** state["step"]
                denominator = (v / second).sqrt().add_(group["epsilon"])
                p.data.addcdiv_(m, denominator, value=-group["lr"] / first)
        return loss
'''

MOMENTUM = """import math
import torch


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4):
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _update(self, p, group):
        d = p.grad + group["weight_decay"] * p
        state = self.state[p]
        if "buffer" not in state:
            state["buffer"] = d.clone()
        else:
            state["buffer"].mul_(group["momentum"]).add_(d)
        p.sub_(state["buffer"], alpha=group["lr"])

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)
"""


@pytest.mark.parametrize(
    ("written", "build", "becomes"),
    [
        (PAPER, "MyAdam(model.parameters(), 2e-3)", "torch.optim.Adam(model.parameters(), 2e-3, fused=True)"),
        (
            PAPER,
            "MyAdam(model.parameters(), learning_rate=0.01, epsilon=1e-7)",
            "torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-7, fused=True)",
        ),
        (
            MOMENTUM,
            "Momentum(model.parameters(), 0.1)",
            "torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.0001, fused=True)",
        ),
        (
            MOMENTUM,
            "Momentum(model.parameters(), 0.1, 0.8, 0.0)",
            "torch.optim.SGD(model.parameters(), 0.1, momentum=0.8, weight_decay=0.0, fused=True)",
        ),
    ],
)
def test_a_class_that_computes_the_same_gives_way_to_torchs(written: str, build: str, becomes: str) -> None:
    text = written + TRAINING.format(build=build)
    after = text_of(fixed(text, "super(", name="MyAdam" if written is PAPER else "Momentum"))
    assert f"optimizer = {becomes}\n" in after
    assert "class " not in after
    assert "Optimizer" not in after
    assert trained(after) == pytest.approx(trained(text), rel=1e-4, abs=1e-6)


def test_the_sick_bays_optimizer_becomes_what_its_healthy_twin_has() -> None:
    folder = SICKBAY / "slow_optimizer"
    after = text_of(fixed((folder / "train.py").read_text(), "super().__init__(parameters", name="AdamW"))
    assert after == (folder / "healthy.py").read_text()


def known(text: str) -> str | None:
    source = parse(text)
    assert source is not None
    found = known_optimizer(source, next(source.every(cst.ClassDef)))
    return found.kind if found is not None else None


@pytest.mark.parametrize(
    ("is_", "was"),
    [
        ("1 - group[\"beta1\"] ** state[\"step\"]", "1 - group[\"beta1\"]"),
        ("(v / second).sqrt().add_(group[\"epsilon\"])", "(v / second).add_(group[\"epsilon\"]).sqrt()"),
        ("(v / second).sqrt().add_(group[\"epsilon\"])", "v.sqrt().add_(group[\"epsilon\"]) / second ** 0.5"),
        ("value=-group[\"lr\"] / first", "value=-group[\"lr\"]"),
        ("addcmul_(grad, grad,", "addcmul_(grad, m,"),
        ("grad = p.grad.data", "grad = p.grad.data.sign()"),
        ("grad = p.grad.data", "grad = p.grad.data.float()"),
        ("grad = p.grad.data", "grad = hooked(p.grad.data)"),
        ("grad = p.grad.data", "grad = p.grad.data.clamp(-1, 1)"),
        ("        return loss", "        self.counted = ema(self)\n        return loss"),
        ("        return loss", "        while True:\n            pass"),
        ("    @torch.no_grad()", "    @torch.compile"),
    ],
)  # fmt: skip
def test_another_formula_is_not_taken_for_torchs(is_: str, was: str) -> None:
    assert known(PAPER) == "Adam"
    assert is_ in PAPER
    assert known(PAPER.replace(is_, was)) is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("torch.save(optimizer.state_dict(), 'x')\n", "keeps its state"),
        ("optimizer.param_groups[0]['beta1'] = 0.8\n", "`beta1`"),
        ("other = MyAdam(**options)\n", "from elsewhere"),
        ("table = torch.nn.Embedding(3, 3, sparse=True)\n", "sparse"),
    ],
)
def test_a_class_whose_state_or_settings_are_used_stays(more: str, why: str) -> None:
    answer = fixed(PAPER + TRAINING.format(build="MyAdam(model.parameters())") + more, "super(", name="MyAdam")
    assert isinstance(answer, Advice)
    assert why in answer.text


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
