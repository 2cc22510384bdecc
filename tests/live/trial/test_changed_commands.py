"""Whole runs of a program that a fix starts with another command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.model import Gate, GateAnswer
from diagnose.program import Program
from diagnose.source.settings.command_line import COMMAND_LINE
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Groups
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.whole_run.gate import WholeRunGate
from diagnose.trial.whole_run.runs import Runs

PROGRAM = f"""
{LIGHT_TORCH}
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--set-to-none", action="store_true")
parser.add_argument("--shift", type=float, default=0.0)
args = parser.parse_args()
print(args)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if args.set_to_none:
    print("gradients are freed")
for step in range(20):
    loss = model(torch.randn(args.batch, 8)).square().mean() + args.shift
    optimizer.zero_grad(set_to_none=args.set_to_none)
    loss.backward()
    optimizer.step()
torch.save({{"args": vars(args), "model": model.state_dict()}}, "last.pt")
print(f"loss {{loss.item():.4f}}")
"""


@pytest.mark.parametrize(
    ("option", "answer"), [("--set-to-none", GateAnswer.PASSED), ("--shift\n0.5", GateAnswer.REFUSED)]
)
def test_a_changed_option_is_run_and_may_be_told(tmp_path: Path, option: str, answer: GateAnswer) -> None:
    home = tmp_path / "program"
    home.mkdir()
    (home / "train.py").write_text(PROGRAM)
    copies = Workspace(Program.parse(["train.py", "--batch", "6"], cwd=home), tmp_path / "trials", dict(os.environ))
    original = copies.make({}, "original")
    patched = copies.make({COMMAND_LINE: f"python\ntrain.py\n--batch\n6\n{option}\n"}, "patched")
    with Groups() as groups:
        place = Workplace(groups, copies.folder, sys.executable, copies.environment_of, edited=copies.edited)
        checks = WholeRunGate(Runs(place, copies, LIMIT_NS, 2)).check(Gate.BITWISE, original, patched)
    assert checks[0].answer is answer, checks
