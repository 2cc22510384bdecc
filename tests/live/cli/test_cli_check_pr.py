"""`diagnose check-pr` on real repositories: the commands of the docs, and what a pretended device counts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import LIGHT_TORCH, LIMIT_S

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

PROGRAM = f"""
{LIGHT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
teacher = nn.Linear(16, 4).to(device)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=8, shuffle=True)
assert next(model.parameters()).device.type == "cuda"
for epoch in range(2):
    for (x,) in loader:
        x = x.to(device, non_blocking=True)
        with torch.no_grad():
            wanted = teacher(x)
        loss = (model(x) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach()
print(total.item())
"""

pytestmark = pytest.mark.slow


def git(folder: Path, *words: str) -> None:
    as_someone = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *as_someone, *words], check=True, capture_output=True)


def commit(folder: Path, text: str) -> None:
    (folder / "train.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "change")


def line_of(text: str, words: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


def diagnose(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *shlex.split(line)]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)


def regressions(folder: Path, *changes: tuple[str, str]) -> list[tuple[str, int]]:
    """The kinds and lines of what becomes worse by these changes of the program."""
    git(folder, "init", "-q")
    commit(folder, PROGRAM)
    text = PROGRAM
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    commit(folder, text)
    done = diagnose(folder, "diagnose check-pr --format json HEAD~1 HEAD train.py")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return [(one["kind"], one["line"]) for one in found["regressions"]]


READS = PROGRAM.replace("total = loss.detach()", "total = loss.detach()\n        print(loss.item())")


def test_the_commands_of_the_docs_name_the_line_that_now_waits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    commit(tmp_path, PROGRAM)
    commit(tmp_path, READS)
    line = line_of(READS, "loss.item()")
    text = diagnose(tmp_path, "diagnose check-pr HEAD~1 HEAD train.py")
    assert text.returncode == 0, text.stderr
    assert f"! train.py:{line}: the host waits for the device once in each step" in text.stdout
    github = diagnose(tmp_path, "diagnose check-pr --format github --fail-on regression HEAD~1 HEAD train.py")
    assert github.returncode == 1, github.stderr
    assert github.stdout.startswith(f"::warning file=train.py,line={line},")
    sarif = diagnose(tmp_path, "diagnose check-pr --format sarif HEAD~1 . train.py")
    (result,) = json.loads(sarif.stdout)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line
    assert git_status(tmp_path) == ""


def git_status(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "status", "--short"], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_refactoring_is_no_regression(tmp_path: Path) -> None:
    step = "loss = (model(x) - wanted).square().mean()"
    assert regressions(tmp_path, (step, "error = model(x) - wanted\n        loss = error.square().mean()")) == []


def test_a_teacher_that_is_recorded_is_a_regression(tmp_path: Path) -> None:
    changes = ("        with torch.no_grad():\n", "        if True:\n"), ("- wanted)", "- wanted.detach())")
    text = PROGRAM.replace(*changes[0])
    assert regressions(tmp_path, *changes) == [("recorded", line_of(text, "wanted = teacher"))]


def test_a_tensor_of_the_host_is_a_copy_in_each_step(tmp_path: Path) -> None:
    change = ("loss = (model(x)", "loss = (model(x) * torch.tensor(1.0, device=device)")
    assert regressions(tmp_path, change) == [("copy", line_of(PROGRAM, "loss = (model(x)"))]


def test_a_program_that_fails_says_what_it_said(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    commit(tmp_path, PROGRAM)
    commit(tmp_path, PROGRAM.replace("epoch in range(2)", "epoch in missing"))
    done = diagnose(tmp_path, "diagnose check-pr HEAD~1 HEAD train.py")
    assert done.returncode == 3
    assert "head ended without a step that could be counted" in done.stderr
    assert "name 'missing' is not defined" in done.stderr
