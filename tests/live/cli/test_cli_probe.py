"""`diagnose probe` and `diagnose run --probe` from the command line to the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import LIGHT_TORCH, LIMIT_S

from diagnose.cli import main
from diagnose.collect.experiments import load_probes

ROOT = Path(__file__).parents[3]
TRAIN = f"""
{LIGHT_TORCH}
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
x = torch.randn(256, 256)
class Samples(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index):
        for _ in range(50):
            x @ x
        return torch.full((256,), float(index))
model = nn.Linear(256, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(1000):
    for batch in DataLoader(Samples(), batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


def answer(folder: Path, *words: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "diagnose", *words, "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)["probes"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("probe", "--quick", "--json", "cached-input"),
        pytest.param(
            ("run", "--json", "--stop-after-trace", "--budget", "10m", "--probe", "auto"), marks=pytest.mark.nightly
        ),
    ],
)
def test_a_slow_loader_is_confirmed_and_the_users_folder_stays_as_it_was(project: Path, words: tuple[str, ...]) -> None:
    (probed,) = answer(project, *words)
    assert (probed["probe"], probed["refused"]) == ("cached-input", "")
    assert probed["saved_ns"][0] > 0
    assert [(one["rule"], one["bearing"]) for one in probed["findings"]] == [("input-bound", "confirms")], probed
    assert (project / "train.py").read_text() == TRAIN
    assert {path.name for path in project.iterdir()} == {"train.py", ".diagnose"}


def test_the_list_has_every_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n{name}\n" in f"\n{said}" for name in load_probes())
    assert main(["probe", "--list", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["probes"]] == list(load_probes())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("probe", "a probe is missing"),
        ("probe no-sink train.py", "no-sink is no probe (`diagnose probe --list` shows all); did you mean no-sync?"),
        ("probe no-sync", "a training script is missing; for example `diagnose probe no-sync train.py`"),
        ("run --probe auto --fix train.py", "--probe and --fix each want the whole budget"),
        ("run --probe no-sink train.py", "no-sink is no probe"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    project: Path, words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
