"""Shows that the rounding gate refuses gradients that torch.compile gets wrong without a word.

In torch 2.11, an in-place operation inside of `autograd.Function.forward` leads to wrong gradients once the function is
compiled, where the forward has a side effect as well: the result is then returned twice, and its gradient goes to the
wrong one (https://github.com/pytorch/pytorch/issues/180642). A program that has such a function is patched the way a
fixer would, by one `torch.compile`, and each patched program is held to the rounding gate. Where this version of torch
computes the right gradients, the gate has to pass:

    python benchmarks/wrong_gradients_2_11.py
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Groups
from diagnose.units import NS_PER_S

LIMIT_NS = 300 * NS_PER_S

PROGRAM = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
seen = []


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
{forward}

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.weight = nn.Parameter(torch.rand(64) + 0.5)
        self.last = nn.Linear(64, 8)

    def forward(self, x):
        return self.last(Shifted.apply(self.first(x), self.weight))


model = Model().to(device)
net = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    x = torch.randn(32, 64, device=device)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
"""
FORWARDS = {
    "without anything in place": """
        ctx.save_for_backward(x, weight)
        return x * weight""",
    "a result added to in place": """
        out = x * weight
        out += 0.25
        ctx.save_for_backward(x, weight)
        return out""",
    "a result added to, and a list": """
        out = x * weight
        out += 0.25
        seen.append(len(seen))
        ctx.save_for_backward(x, weight)
        return out""",
    "a buffer written, and a list": """
        out = torch.zeros_like(x)
        out += x * weight
        seen.append(out.shape[0])
        ctx.save_for_backward(x, weight)
        return out""",
}
"""Ways to write one function; in eager mode all have the same gradients."""


def main() -> int:
    """Print a line a program; 1 where one was refused that torch is known to get right."""
    parser = argparse.ArgumentParser(description="Does the rounding gate refuse silently wrong gradients?")
    parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"torch {torch.__version__}, {where}\n")
    print(f"{'autograd.Function.forward, compiled':<38} {'gradients':<10} gate")
    refused = 0
    with tempfile.TemporaryDirectory() as room, Groups() as groups:
        environment = dict(os.environ)
        keeper = Gatekeeper(Workplace(groups, Path(room) / "work", sys.executable, lambda _: environment), LIMIT_NS)
        for number, (name, forward) in enumerate(FORWARDS.items()):
            text = PROGRAM.format(forward=forward.strip("\n"))
            original = _placed(Path(room) / f"{number}-original", text)
            patched = _placed(
                Path(room) / f"{number}-patched", text.replace("net = model", "net = torch.compile(model)")
            )
            answer = keeper.check(Gate.ROUNDING, original, patched)
            refused += answer.passed is False
            print(f"{name:<38} {_said(answer):<10} {answer.detail.splitlines()[-1]}", flush=True)
    known_wrong = torch.__version__.startswith("2.11.")
    print()
    if refused:
        print(f"{refused} of {len(FORWARDS)} get wrong gradients here, and the gate refused them.")
    elif known_wrong:
        print("None of these got wrong gradients, though this version is known for it: they do not reproduce it.")
    else:
        print("This version computes all of them right: pytorch#180642 is fixed here.")
    return int(bool(refused) and not known_wrong)


def _placed(folder: Path, text: str) -> Program:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text)
    return Program.parse(["train.py"], cwd=folder)


def _said(answer: GateResult) -> str:
    return {True: "right", False: "WRONG", None: "unknown"}[answer.passed]


if __name__ == "__main__":
    sys.exit(main())
