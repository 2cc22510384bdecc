"""What docs/python.md shows works as shown, in the order shown."""

# mypy: disallow-subclassing-any=False
# Lightning's classes are unknown where it is not installed.

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import diagnose

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "python.md").read_text()
RECORDING, AROUND, WITHIN, HUGGING_FACE, LIGHTNING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CELLS = re.findall(r"```ipython\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(next((ROOT / "sample_traces" / "h200_naive_gpt").rglob("trace.json.gz")), tmp_path)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = list(torch.randn(250, 8, 32))

    def train_step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return {
        "diagnose": diagnose,
        "loader": loader,
        "train_step": train_step,
        "train": lambda: [*map(train_step, loader)],
    }


@pytest.mark.parametrize("block", [RECORDING, AROUND, WITHIN], ids=["recording", "around", "within"])
def test_a_block_of_the_page_runs(names: dict[str, Any], block: str) -> None:
    exec(block, names)
    analysis = names["analysis"] if block == RECORDING else names["watched"].analysis
    assert analysis.diagnosis.steps.count > 1
    assert block == AROUND or Path("report.html").read_text().startswith("<!doctype html>")


def test_the_cells_of_the_page_run(names: dict[str, Any]) -> None:
    shell = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed").InteractiveShell()
    shell.user_ns |= names
    for cell in CELLS:
        shell.run_cell(cell).raise_error()
    assert shell.user_ns["_"].diagnosis.steps.count > 1


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_the_block_of_hugging_face_runs(names: dict[str, Any], tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).square().mean()}

    options: dict[str, Any] = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=str(tmp_path), max_steps=250, use_cpu=True, **options)
    names["trainer"] = Trainer(Model(), arguments, train_dataset=[{"x": torch.randn(32)} for _ in range(2000)])
    exec(HUGGING_FACE, names)
    assert names["watching"].analysis.diagnosis.steps.count > 1


@pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed")
@pytest.mark.filterwarnings("ignore")
def test_the_block_of_lightning_runs(names: dict[str, Any]) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data: Any = list(torch.randn(2000, 32))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    names |= {"Trainer": Trainer, "module": Module(), "loader": loader}
    exec(LIGHTNING, names)
    assert names["watching"].analysis.diagnosis.steps.count > 1
