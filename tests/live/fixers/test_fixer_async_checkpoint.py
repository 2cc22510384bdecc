"""Checkpoints written in the background hold what the others hold, and nothing is lost on the way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Advice, Edits, example_request
from diagnose.plugins import load

FIXER = load().fixers["async-checkpoint"]

FLAT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for step in range(6):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{step}.pt")
print(loss.item())
"""
TRAINER = """
import os
import torch

class Trainer:
    def __init__(self, folder):
        torch.manual_seed(0)
        self.folder = folder
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def save(self, step):
        state = self.model.state_dict()
        torch.save(state, os.path.join(self.folder, f"{step}.pt"))

    def fit(self, steps):
        for epoch in range(2):
            for step in range(steps):
                loss = self.model(torch.randn(8, 4)).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.save(step + 3 * epoch)
        print(loss.item())

if __name__ == "__main__":
    Trainer(".").fit(3)
"""
FUNCTION = """
import tempfile, shutil
from pathlib import Path
import torch
from torch import save

def train(folder):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    while True:
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            checkpoint = dict(step=step, model=model.state_dict(), seen=[step, (step,)], tied=[model.weight] * 2)
            save(checkpoint, folder / f"{step}.pt")
        if step == 4:
            break
    print(loss.item())

with tempfile.TemporaryDirectory() as name:
    train(Path(name))
    for path in Path(name).glob("*"):
        shutil.copy(path, path.name)
"""


def patched(text: str) -> Edits:
    answer = FIXER.rewrite(example_request("periodic-stall", text))
    assert isinstance(answer, Edits)
    return answer


def run(folder: Path, files: dict[str, str]) -> tuple[str, dict[str, object]]:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [*LIGHT_PYTHON, "train.py"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert not list(folder.glob("*unfinished*"))
    return done.stdout, {path.name: torch.load(path, weights_only=False) for path in sorted(folder.glob("*.pt"))}


@pytest.mark.parametrize("text", [FLAT, TRAINER, FUNCTION], ids=["flat", "trainer", "function"])
def test_the_files_are_those_that_were_written_before(tmp_path: Path, text: str) -> None:
    told, kept = run(tmp_path / "before", {"train.py": text})
    told_now, kept_now = run(tmp_path / "after", dict(patched(text).files))
    assert told_now == told
    assert list(kept_now) == list(kept)
    assert len(kept) >= 2
    for name in kept:
        torch.testing.assert_close(_plain(kept_now[name]), _plain(kept[name]), rtol=0, atol=0)


def _plain(value: object) -> object:
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_an_error_of_the_thread_is_raised_after_the_loop(tmp_path: Path) -> None:
    text = FLAT.replace('f"{step}.pt"', 'f"absent/{step}.pt"').replace("step % 2 == 0", "step == 5")
    files = dict(patched(text).files)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    done = subprocess.run([*LIGHT_PYTHON, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode != 0
    assert "absent" in done.stderr
    assert "finish_saving()" in done.stderr


def test_tensors_that_share_memory_share_it_in_the_file(tmp_path: Path) -> None:
    _, kept = run(tmp_path / "after", dict(patched(FUNCTION).files))
    first, second = kept["2.pt"]["tied"]  # type: ignore[index]
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("torch.save(model, 'm.pt')", "not seen to be a dictionary"),
        ("torch.save(model.state_dict(), 'm.pt', pickle_protocol=4)", "more than a state and a path"),
        (
            "torch.save(model.state_dict(), 'm.pt'); model.load_state_dict(torch.load('m.pt'))",
            "may meet a file that is not written yet",
        ),
        (
            "name = 'm.pt'; torch.save(model.state_dict(), name); upload(name)",
            "may meet a file that is not written yet",
        ),
    ],
)
def test_what_is_not_understood_is_left_alone_with_the_reason(step: str, why: str) -> None:
    text = f"import torch\nfor x in loader:\n    model(x).sum().backward()\n    {step}\n"
    answer = FIXER.rewrite(example_request("periodic-stall", text))
    assert isinstance(answer, Advice)
    assert why in answer.text


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("movie = os.path.join(folder, 'a_'); write_video(movie + 'rgb.mp4', frames)", Edits),
        ("movie = os.path.join(folder, 'a'); write_video(movie, frames)", Advice),
        ("write_all(os.path.join(folder, 'a.pt'), frames)", Advice),
        ("folder = 'runs/lr0.1'; send(folder)", Advice),
        ("send(os.path.join(folder, '*.pt'))", Advice),
        ("send(f'{folder}/?.pt')", Advice),
        ("send(os.path.join(folder, '*.csv'))", Edits),
        ("data = requests.get(url); data.iter_content(9)", Edits),
        ("client = boto3.client('s3'); client.send(9)", Advice),
    ],
)
def test_other_files_and_what_comes_from_the_network_are_no_checkpoints(step: str, kind: type) -> None:
    text = (
        "import os\nimport boto3\nimport requests\nimport torch\nfor x in loader:\n    model(x).sum().backward()\n"
        f"    torch.save(model.state_dict(), os.path.join(folder, 'a.pt'))\n    {step}\n"
    )
    assert isinstance(FIXER.rewrite(example_request("periodic-stall", text)), kind)


def test_no_file_is_added_and_the_module_is_imported() -> None:
    files = patched(FLAT).files
    assert list(files) == ["train.py"]
    assert "from diagnose.background_saves import finish_saving, save_in_background\n" in files["train.py"]


@pytest.mark.parametrize(
    ("before", "at_start", "at_end", "kind"),
    [
        ("if resume:\n    model.load_state_dict(torch.load('a.pt'))\n", "", "", Edits),
        ("", "    if step == 4:\n        model.load_state_dict(torch.load('a.pt'))\n", "", Advice),
        ("", "", "    shutil.copyfile('a.pt', 'best.pt')\n", Advice),
    ],
    ids=["resumed before", "read in the next turn", "copied"],
)
def test_a_file_that_the_loop_reads_again_is_written_in_place(
    before: str, at_start: str, at_end: str, kind: type
) -> None:
    text = (
        f"import shutil\nimport torch\n{before}for step in range(9):\n{at_start}    model(x).sum().backward()\n"
        f"    optimizer.step()\n    torch.save({{'model': model.state_dict()}}, 'a.pt')\n{at_end}"
    )
    assert isinstance(FIXER.rewrite(example_request("periodic-stall", text)), kind)


def test_a_method_of_the_model_is_not_the_function_of_the_same_name() -> None:
    text = (
        "import torch\ndef train(loader, model):\n    for step, x in enumerate(loader):\n"
        "        model(x).sum().backward()\n        if step % 9 == 0:\n            torch.save({'step': step}, 'a.pt')\n"
        "            model.train()\n    torch.save({'step': step}, 'last.pt')\n    print('saved')\n"
        "train(loader, model)\n"
    )
    after = patched(text).files["train.py"]
    assert "    torch.save({'step': step}, 'last.pt')\n    print('saved')\n" in after
    assert "save_in_background({'step': step}, 'a.pt')" in after
