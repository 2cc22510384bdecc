"""A watched run from the first word to the diagnosis, on a real program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_S

from diagnose.collect import Recipe
from diagnose.collect.launch import Outcome
from diagnose.observe import _shortcomings, _StepCount

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
steps = int(sys.argv[1])
loader = DataLoader(TensorDataset(torch.randn(4096, 64), torch.randn(4096, 1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (inputs, targets) in zip(range(steps), loader):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained", step + 1)
"""


def run(
    folder: Path, program: str, *words: str, options: tuple[str, ...] = ("--json",)
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "diagnose", "run", *options, "train.py", *words]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ
    )


def test_a_run_ends_in_a_diagnosis_on_stdout_and_a_run_folder(tmp_path: Path) -> None:
    answer = run(tmp_path, PROGRAM, "100")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["diagnosis"]["steps"]["count"] >= 3
    assert "trained 100" in answer.stderr  # the program's words, out of the way of the JSON
    (folder,) = (tmp_path / ".diagnose" / "runs").iterdir()
    kept = json.loads((folder / "diagnosis.json").read_text())
    assert kept["steps"] == report["diagnosis"]["steps"]
    assert (tmp_path / ".diagnose" / ".gitignore").read_text() == "*\n"


def test_without_json_the_program_has_stdout_first_and_the_report_follows(tmp_path: Path) -> None:
    answer = run(tmp_path, PROGRAM, "60", options=())
    assert answer.returncode == 0
    assert answer.stdout.startswith("trained 60\n")
    assert re.search(r"^Where a (traced )?step's ", answer.stdout, re.MULTILINE)  # traced: where its length differs


def test_a_program_that_ends_too_early_gets_a_plain_sentence(tmp_path: Path) -> None:
    answer = run(tmp_path, PROGRAM, "5")
    assert answer.returncode == 0
    (warning, *_) = json.loads(answer.stdout)["diagnosis"]["warnings"]
    assert warning.startswith("the program ended after 5 steps")


def test_a_program_that_trains_nothing_gets_a_plain_sentence(tmp_path: Path) -> None:
    answer = run(tmp_path, "print('no torch at all')\n")
    assert answer.returncode == 0
    (warning, *_) = json.loads(answer.stdout)["diagnosis"]["warnings"]
    assert warning.startswith("no training step was seen")
    assert "reading the trace" not in answer.stderr


def test_a_program_that_fails_before_its_first_step_is_not_told_to_name_another(tmp_path: Path) -> None:
    answer = run(tmp_path, "import torch\nraise RuntimeError('no data')\n")
    assert answer.returncode == 3
    (warning, *_) = json.loads(answer.stdout)["diagnosis"]["warnings"]
    assert warning.startswith("no training step was seen before it failed: what the program says above")
    assert [line for line in answer.stderr.splitlines() if "diagnos" in line and "fail" in line] == [
        "diagnose: the program failed with exit code 1"
    ]
    assert "nothing to diagnose" not in answer.stderr


@pytest.mark.parametrize(
    ("ending", "says"), [("raise RuntimeError('out of luck')", "exit code 1"), ("sys.exit(7)", "exit code 7")]
)
def test_a_program_that_fails_keeps_its_traceback_and_gives_exit_code_3(tmp_path: Path, ending: str, says: str) -> None:
    answer = run(tmp_path, PROGRAM + ending + "\n", "40", options=())
    assert answer.returncode == 3
    if "raise" in ending:
        assert "RuntimeError: out of luck" in answer.stderr
    assert says in answer.stderr


def test_a_run_that_is_interrupted_in_its_first_step_is_told_to_go_on() -> None:
    outcome = Outcome(returncode=130, stopped=False, interrupted=True, ranks=())
    (said,) = _shortcomings(_StepCount(), Recipe(), outcome)
    assert said.startswith("the program was interrupted before its first training step had ended")
