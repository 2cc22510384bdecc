"""use-diagnose-backend on programs as people write them: they run, rewritten, and train to the same losses."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from diagnose import graph
from diagnose.fixer import Advice, Edits, example_request
from diagnose.graph import decision
from diagnose.model import Site
from diagnose.plugins import load

FIXER = load().fixers["use-diagnose-backend"]
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=16, classes=50):
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.norm, self.both = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down, self.head = nn.Linear(2 * width, width), nn.Linear(width, classes)

    def forward(self, x, y):
        x = self.embedding(x)
        gate, up = self.both(self.norm(x)).chunk(2, dim=-1)
        x = x + self.down(F.silu(gate) * up)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


torch.manual_seed(0)
losses = []
"""
PROGRAMS = {
    "a script": (
        """model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randint(0, 50, (2, 8))
    _, loss = model(x, x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        'model.compile(backend=backend, options={"inner": "eager"})',
    ),
    "functions, and a name that is taken": (
        """def build(backend):
    return Net().to(backend)


def train(backend="cpu"):
    net = build(backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        batch = torch.randint(0, 50, (2, 8))
        loss = net(batch, batch)[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


train()
""",
        'options={"inner": "eager"})',
    ),
    "compiled under a switch": (
        """compile = True
model = Net()
if compile:
    model = torch.compile(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randint(0, 50, (2, 8))
    logits, loss = model(x, x)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    losses.append(loss.item())
""",
        "    model = torch.compile(model, backend=backend)",
    ),
}


def losses_of(text: str) -> list[float]:
    torch.compiler.reset()
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), names)
    found: list[float] = names["losses"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # The one that is compiled takes a minute of Inductor's time.
    [pytest.param(name, marks=pytest.mark.nightly if "compiled" in name else ()) for name in PROGRAMS],
)
def test_the_program_is_rewritten_and_trains_to_the_same_losses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, expected = PROGRAMS[name]
    if "torch.compile" in body and shutil.which("g++") is None:
        pytest.skip("Inductor compiles C++ for CPUs")
    before = MODEL + body
    lines = [number for number, line in enumerate(before.splitlines(), 1) if "torch.compile(" in line]
    sites = [Site("compile", "train.py", line) for line in lines]
    answer = FIXER.rewrite(example_request("unfused-loss", before, sites=sites))
    assert isinstance(answer, Edits)
    after = answer.files["train.py"]
    assert expected in after
    # As on a device where every site pays: on a CPU none does.
    monkeypatch.setattr(decision, "_why_left", lambda *_: "")
    monkeypatch.setattr(decision, "_slower", lambda *_: "")
    found = len(graph.report().graphs)
    assert losses_of(after) == pytest.approx(losses_of(before), rel=1e-5)
    rewritten = {site.pattern for each in graph.report().graphs[found:] for site in each.sites if site.rewritten}
    assert rewritten == {"cross-entropy", "swiglu"}


def test_a_program_that_did_not_compile_in_this_run_is_left_alone() -> None:
    text = MODEL + PROGRAMS["compiled under a switch"][0].replace("compile = True", "compile = False")
    assert FIXER.rewrite(example_request("unfused-loss", text)) is None


@pytest.mark.parametrize(
    ("effect", "why"),
    [
        ("x = x + torch.from_numpy(np.random.rand(16)).float()", "draws random numbers that are not torch's"),
        ("self.seen.append(x.mean())", "collects values"),
        ("print(x.shape)", "forward pass"),
    ],
)
def test_a_forward_pass_that_does_more_than_compute_is_left_alone(effect: str, why: str) -> None:
    text = "import numpy as np\n" + MODEL + PROGRAMS["a script"][0]
    assert isinstance(FIXER.rewrite(example_request("unfused-pointwise", text)), Edits)
    text = text.replace("        logits =", f"        {effect}\n        logits =")
    answer = FIXER.rewrite(example_request("unfused-pointwise", text))
    assert isinstance(answer, Advice)
    assert why in answer.text


def test_a_model_whose_modules_are_hooked_is_left_alone() -> None:
    text = MODEL + PROGRAMS["a script"][0].replace("opt =", "model.norm.register_forward_hook(print)\nopt =", 1)
    answer = FIXER.rewrite(example_request("unfused-pointwise", text))
    assert isinstance(answer, Advice)
    assert "hooks modules" in answer.text
