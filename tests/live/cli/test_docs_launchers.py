"""The launchers of docs/launchers.md that can be run here, and the demo of docs/tutorial.md."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from watching import LIMIT_S

ROOT = Path(__file__).resolve().parents[3]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

PROGRAM = """
import os
import torch
from torch import nn

torch.set_num_threads(1)
{prepare}
for step in range(400):
    loss = model(torch.randn(64, 256)).square().mean()
    optimizer.zero_grad()
    {backward}
    optimizer.step()
{finish}
"""
MODEL = "model = nn.Linear(256, 256)\noptimizer = torch.optim.AdamW(model.parameters())\n"
DDP = "torch.distributed.init_process_group('gloo')\n" + MODEL + "model = nn.parallel.DistributedDataParallel(model)"
ACCELERATE = (
    "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    + MODEL
    + "model, optimizer = accelerator.prepare(model, optimizer)"
)


def diagnose(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(line)]
    environ = {**os.environ, "PYTHONPATH": PYTHONPATH, "PATH": PATH}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environ)


@pytest.mark.parametrize(
    ("line", "program", "ranks"),
    [
        (
            "diagnose run -- torchrun --nproc-per-node 2 train.py",
            PROGRAM.format(prepare=DDP, backward="loss.backward()", finish="torch.distributed.destroy_process_group()"),
            2,
        ),
        pytest.param(
            "diagnose run -- accelerate launch --num_processes 1 --cpu train.py",
            PROGRAM.format(prepare=ACCELERATE, backward="accelerator.backward(loss)", finish=""),
            1,
            marks=pytest.mark.skipif(find_spec("accelerate") is None, reason="Accelerate is not installed"),
        ),
    ],
    ids=["torchrun", "accelerate"],
)
def test_the_ranks_of_a_launcher_are_watched(tmp_path: Path, line: str, program: str, ranks: int) -> None:
    (tmp_path / "train.py").write_text(program)
    done = diagnose(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f" · {ranks} rank" in done.stdout
    assert len(list(tmp_path.glob(".diagnose/runs/*/rank*/window.json"))) == ranks


@pytest.mark.parametrize(
    "line",
    ["diagnose demo --keep demo --budget 20s", pytest.param("diagnose demo --keep demo", marks=pytest.mark.nightly)],
)
def test_the_demo_keeps_its_program_and_its_run(tmp_path: Path, line: str) -> None:
    done = diagnose(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "train.py").is_file()
    assert list(tmp_path.glob("demo/.diagnose/runs/*/report.html"))
