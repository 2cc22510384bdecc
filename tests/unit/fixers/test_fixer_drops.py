"""Programs from which waits, emptied caches and debug leftovers were taken still run, and compute the same."""

from __future__ import annotations

import gc
import io
from contextlib import redirect_stdout

import pytest

from diagnose.fixer import Advice, Edits, example_request, lines_with
from diagnose.plugins import load

torch = pytest.importorskip("torch")
FIXERS = load().fixers

FLAT = """
import gc
import torch

torch.autograd.set_detect_anomaly(True, check_nan=False)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    assert torch.isfinite(loss).all(), "diverged"
    optimizer.step()
    # free what is not needed
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    if step % 2 == 0:
        print(step, loss.item())
"""
TRAINER = '''
import gc

import torch
from torch.cuda import synchronize


class Trainer:
    """Fits."""

    def __init__(self, device):
        self.device = device
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for layer in self.model:
            layer.register_forward_hook(self.look)

    @staticmethod
    def look(layer, inputs, output):
        pass

    def clean(self):
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self):
        if self.device.type == "cuda":
            synchronize()

    def train_step(self, x):
        self.optimizer.zero_grad()
        with torch.autograd.detect_anomaly(check_nan=False):
            loss = self.model(x).square().mean()
            loss.backward()
        self.optimizer.step()
        self.wait()
        self.clean()
        return loss

    def fit(self, batches):
        for epoch in range(2):
            for x in batches:
                loss = self.train_step(x)
            print(epoch, loss.item())


trainer = Trainer(torch.device("cpu"))
trainer.fit([torch.randn(2, 4) for _ in range(3)])
model = trainer.model
'''
FUNCTIONS = """
import gc
import os
import time

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
os.environ["DATA"] = "here"

import torch


def look(module, inputs, output):
    if not torch.isfinite(output).all():
        raise RuntimeError(f"{module} gives NaN")


def train(model, optimizer, batches, log_every):
    start = time.perf_counter()
    for i, x in enumerate(batches):
        with torch.autograd.set_detect_anomaly(True, check_nan=False), torch.enable_grad():
            loss = model(x).square().mean()
            loss.backward()
        optimizer.step(); optimizer.zero_grad()
        if torch.cuda.is_available(): torch.cuda.synchronize()
        del x
        gc.collect()
        if torch.cuda.is_available(): torch.cuda.empty_cache()
        if i % log_every == 0:
            elapsed = time.perf_counter() - start
            print(i, loss.item(), elapsed >= 0)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    for module in model.modules():
        module.register_forward_hook(look)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.randn(2, 4) for _ in range(6)], 3)
"""


def outcome(text: str) -> tuple[str, list[float]]:
    printed = io.StringIO()
    names: dict[str, object] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("CUDA_LAUNCH_BLOCKING", "0")
        patch.setenv("DATA", "")
        gc.freeze()  # the programs collect in each step: their garbage, not what the tests before this one have left
        try:
            exec(compile(text, "train.py", "exec", dont_inherit=True), names)
        finally:
            torch.autograd.set_detect_anomaly(False)
            gc.enable()
            gc.unfreeze()
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return printed.getvalue(), [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


@pytest.mark.parametrize("text", [FLAT, TRAINER, FUNCTIONS], ids=["flat", "trainer", "functions"])
@pytest.mark.parametrize(
    ("name", "rule", "gone"),
    [
        ("drop-empty-cache", "allocator-churn", ["empty_cache()", "gc.collect()", "import gc"]),
        ("drop-synchronize", "host-sync", ["synchronize()"]),
        ("drop-debug", "debug-leftovers", ["anomaly", "LAUNCH_BLOCKING"]),
        ("gc-schedule", "gc-pause", []),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_what_is_left_computes_the_same(text: str, name: str, rule: str, gone: list[str]) -> None:
    fixer = FIXERS[name]
    for setting in fixer.settings(example_request(rule, text)):
        answer = fixer.rewrite(example_request(rule, text, setting=setting))
        assert isinstance(answer, Edits)
        patched = answer.files["train.py"]
        assert not [part for part in gone if part in patched]
        assert outcome(patched) == outcome(text)
        if name != "gc-schedule":
            assert not isinstance(fixer.rewrite(example_request(rule, patched)), Edits)


def test_a_wait_that_makes_the_own_timing_true_stays() -> None:
    text = FLAT.replace("    if step % 2", "    took = time.time() - began\n    if step % 2")
    answer = FIXERS["drop-synchronize"].rewrite(example_request("host-sync", text))
    assert isinstance(answer, Advice)
    assert "reads a clock" in answer.text


def test_a_wait_behind_a_counter_stays_where_a_finding_names_its_line_too() -> None:
    logged = (
        "    if step % 2 == 0:\n        torch.cuda.synchronize()  # for the clock\n        took = time.time() - began\n"
    )
    text = FLAT.replace("    if step % 2", f"{logged}    if step % 2", 1)
    lines = lines_with(text, "for the clock")
    answer = FIXERS["drop-synchronize"].rewrite(example_request("host-sync", text, lines=lines))
    assert isinstance(answer, Edits)
    assert answer.files["train.py"].count("synchronize()") == 1
    assert "# for the clock" in answer.files["train.py"]


def test_a_switch_from_the_command_line_is_left_to_it() -> None:
    text = FLAT.replace("set_detect_anomaly(True,", "set_detect_anomaly(args.debug,")
    answer = FIXERS["drop-debug"].rewrite(example_request("debug-leftovers", text))
    assert isinstance(answer, Advice)
    assert "args.debug" in answer.text


CHECKS = {
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)\n{loop}",
    "a context": "with torch.autograd.detect_anomaly():\n    loss.backward()\n",
    "an assertion": "{loop}    assert torch.isfinite(loss).all()\n",
    "gradcheck": "{loop}    torch.autograd.gradcheck(model, x)\n",
    "a hook": "def see(m, i, o):\n    if o.isnan().any():\n        raise ValueError\n"
    "model.register_forward_hook(see)\n{loop}",
}
LOOP = "for x in loader:\n    loss = model(x).sum()\n    loss.backward()\n    optimizer.step()\n"


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_a_check_that_may_end_the_run_stays_and_its_line_is_named(check: str) -> None:
    answer = FIXERS["drop-debug"].rewrite(
        example_request("debug-leftovers", "import torch\n" + check.format(loop=LOOP))
    )
    assert isinstance(answer, Advice)
    assert answer.text.startswith("train.py:")
    assert "may end the run by an error" in answer.text
