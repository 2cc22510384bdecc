"""channels-last on whole programs: the same parameters after some steps, and the layout that was asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Edits, Site, example_request
from diagnose.plugins import load

FIXER = load().fixers["channels-last"]

MNIST = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 8, 3, 1)
        self.fc1 = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        output = F.log_softmax(x, dim=1)
        return output


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def main():
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_loader = [(torch.rand(4, 1, 12, 12), torch.randint(10, (4,))) for _ in range(3)]
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    for epoch in range(1, 2):
        train(None, model, device, train_loader, optimizer, epoch)
    return model


if __name__ == "__main__":
    model = main()
"""

VIEWED = """
import torch
from torch import nn

torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = features
        self.more = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 6 * 6, 10)

    def forward(self, x):
        x = self.more(self.features(x))
        x = x.view(x.size(0), -1)
        return self.head(x)


class Trainer:
    def __init__(self, batches):
        self.batches = batches
        self.model = CNN()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.criterion = nn.CrossEntropyLoss()

    def fit(self):
        for images, labels in self.batches:
            images = images.to("cpu")
            loss = self.criterion(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


trainer = Trainer([(torch.rand(4, 3, 12, 12), torch.randint(10, (4,))) for _ in range(3)])
trainer.fit()
model = trainer.model
"""

SICK = Path(__file__).parents[3] / "benchmarks" / "sickbay" / "layout_transposes"


def trained(text: str) -> torch.nn.Module:
    names: dict[str, Any] = {"__name__": "__main__"}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        exec(compile(text, "train.py", "exec"), names)
    finally:
        torch.set_default_dtype(default)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    return model


@pytest.mark.parametrize("text", [MNIST, VIEWED], ids=["mnist", "viewed"])
def test_the_same_parameters_are_learnt_in_the_other_layout(text: str) -> None:
    answer = FIXER.rewrite(example_request("layout-transposes", text))
    assert isinstance(answer, Edits)
    before, after = trained(text), trained(answer.files["train.py"])
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    weights = [each for each in after.parameters() if each.dim() == 4 and each.shape[1] > 1]
    assert weights
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in weights)


def test_inputs_that_surely_are_images_change_with_the_model() -> None:
    answer = FIXER.rewrite(example_request("layout-transposes", MNIST))
    assert isinstance(answer, Edits)
    text = answer.files["train.py"]
    assert "data, target = data.to(device, memory_format=torch.channels_last), target.to(device)" in text
    assert "    model = Net().to(device)\n    model.to(memory_format=torch.channels_last)\n" in text


def test_a_format_that_the_program_chooses_is_changed_there(tmp_path: Path) -> None:
    text = (SICK / "train.py").read_text()
    answer = FIXER.rewrite(example_request("layout-transposes", text, sites=[Site("optimizer", "train.py", 51)]))
    assert isinstance(answer, Edits)
    patched = answer.files["train.py"]
    assert patched == text.replace("torch.contiguous_format", "torch.channels_last")
    (tmp_path / "train.py").write_text(patched)
    command = [*LIGHT_PYTHON, "train.py", "--tiny", "--steps", "2"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=LIMIT_S, check=True, text=True)
    assert "loss" in run.stdout
