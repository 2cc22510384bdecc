"""fp8-linear on programs as people write them: where the call goes, and that they run, save and load as they did."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from diagnose.fixer import Advice, Answer, Edits, Facts, Fixer, example_request
from diagnose.kernels import fp8_linear
from diagnose.plugins import load

FIXER: Fixer = load().fixers["fp8-linear"]
FACTS = Facts(device_name="NVIDIA H100 80GB HBM3", device_capability=(9, 0), autocast_dtype="bfloat16")
HEAD = """import copy, io, pickle
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(48, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 48)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        return self.head(x + self.down(torch.relu(self.up(x))))


torch.manual_seed(0)
losses = []
"""
TRAINED = """for _ in range(3):
    x = torch.randint(0, 48, (2, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
BUILT = """model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
compiled = torch.compile(model)
"""
PROGRAMS = {
    "weights are drawn after the model is built": """model = Net()
model.to("cpu")
for module in model.modules():
    if type(module) is nn.Linear:
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.Linear):
        raise TypeError(module)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
compiled = torch.compile(model)
"""
    + TRAINED,
    "a copy keeps averages": BUILT
    + "average = copy.deepcopy(model)\n"
    + TRAINED.replace(
        "    losses",
        "    for a, b in zip(average.parameters(), model.parameters()):\n        a.data.lerp_(b.data, 0.1)\n    losses",
    )
    + "with torch.no_grad():\n    losses.append(average(x).mean().item())\n",
    "the model is pickled whole and goes on": BUILT
    + TRAINED
    + "model = pickle.loads(pickle.dumps(model))\noptimizer = torch.optim.AdamW(model.parameters(), lr=0.01)\n"
    + TRAINED,
    "weights are read by name": BUILT
    + TRAINED
    + "losses += [float(model.state_dict()['up.weight'].norm()), float(model.get_parameter('down.weight').sum())]\n"
    "losses.append(len(str(model)))\n",
    "narrowed afterwards": BUILT + TRAINED + "model.half()\nlosses.append(model(x).float().mean().item())\n",
    "a model for every fold": """for fold in range(2):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    compiled = torch.compile(model)
"""
    + "".join(f"    {line}\n" for line in TRAINED.splitlines()),
}


def asked(text: str, facts: Facts = FACTS) -> Answer:
    return FIXER.rewrite(replace(example_request("compute", text), facts=facts))


def patched(text: str) -> str:
    answer = asked(text)
    assert isinstance(answer, Edits), answer
    return answer.files["train.py"]


def losses_of(text: str) -> list[float]:
    module = ModuleType("train")
    sys.modules["train"] = module  # pickles look the class up
    # The text says that the model is compiled; what compilers do is tested with the layers.
    exec(compile(text.replace("torch.compile(model)", "model"), "train.py", "exec"), vars(module))
    del sys.modules["train"]
    found: list[float] = vars(module)["losses"]
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_runs_and_trains_near_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = HEAD + PROGRAMS[name]
    after = patched(before)
    assert losses_of(after) == losses_of(before)  # this device has no fp8
    monkeypatch.setattr(fp8_linear, "has_fp8", lambda _device: True)
    monkeypatch.setattr(fp8_linear, "LEAST_WEIGHTS", 1)
    found = losses_of(after)
    assert found == pytest.approx(losses_of(before), rel=0.05, abs=0.02)
    assert found != losses_of(before)


def test_the_call_comes_after_the_model_is_moved_and_before_it_is_wrapped() -> None:
    text = HEAD + BUILT.replace("Net()", "Net()\nmodel.to(device)\nmodel = DistributedDataParallel(model)") + TRAINED
    assert "model.to(device)\nmultiply_in_fp8(model)\nmodel = DistributedDataParallel(model)\n" in patched(text)


def test_every_fold_gets_the_call() -> None:
    assert "    model = Net()\n    multiply_in_fp8(model)\n" in patched(HEAD + PROGRAMS["a model for every fold"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("model = get_peft_model(model, config)", "adapts"),
        ("model.up.forward = model.down.forward", "adapts or replaces"),
        ("model.up.register_full_backward_hook(look)", "hooks"),
        ("fully_shard(model)", "distributes"),
        ("twin = copy.copy(model)", "copies"),
        ("scripted = torch.jit.trace(model, x)", "compiles"),
        ("(slope,) = torch.autograd.grad(loss, x, create_graph=True)", "gradients of gradients"),
    ],
)
def test_it_says_which_line_another_product_does_not_go_with(line: str, why: str) -> None:
    before = (HEAD + BUILT).replace("import torch\n", "import torch\nfrom peft import get_peft_model\n", 1)
    if "peft" not in line:
        before = HEAD + BUILT
    answer = asked(before + line + "\n" + TRAINED)
    assert isinstance(answer, Advice)
    assert f"train.py:{len(before.splitlines()) + 1} " in answer.text
    assert why in answer.text


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, device_capability=(8, 6)),
        replace(FACTS, device_capability=None),
        replace(FACTS, device_name="AMD Instinct MI300X", device_capability=(9, 4)),
        Facts(),
    ],
)
def test_devices_without_fp8_are_left_alone(facts: Facts) -> None:
    assert asked(HEAD + BUILT + TRAINED, facts) is None


def test_a_program_in_float32_is_left_alone() -> None:
    text = (HEAD + BUILT + TRAINED).replace("bfloat16", "float32")
    assert asked(text, replace(FACTS, autocast_dtype="none")) is None
    assert isinstance(asked(text), Edits)  # a library opens autocast


def test_a_program_that_compiles_nothing_is_left_alone() -> None:
    assert asked((HEAD + BUILT + TRAINED).replace("torch.compile(model)", "model")) is None


def test_what_was_saved_without_it_loads_with_it_and_the_other_way() -> None:
    file = io.BytesIO()
    plain, layer = torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 4096)
    fp8_linear.multiply_in_fp8(layer)
    torch.save(layer.state_dict(), file)
    file.seek(0)
    plain.load_state_dict(torch.load(file))
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(plain.weight, layer.weight)
