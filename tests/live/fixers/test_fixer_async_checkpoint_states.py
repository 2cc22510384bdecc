"""What is saved in the background is what `torch.save` would have written, wherever it is written to."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from background_saves import made
from watching import LIGHT_PYTHON, LIMIT_S

from diagnose.fixer import Edits, example_request
from diagnose.plugins import load


@pytest.fixture
def shim() -> Any:
    return made()


def kept(shim: Any, folder: Path, state: object) -> Any:
    """What a state is in the file."""
    shim.save_in_background(state, folder / "a.pt")
    shim.finish_saving()
    return torch.load(folder / "a.pt", weights_only=False)


def test_views_that_differ_in_a_sign_alone_stay_apart(shim: Any, tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j])
    turned = {"as it is": value, "conjugate": value.conj()}
    parts = {"part": value.imag, "negative": value.conj().imag}
    found = kept(shim, tmp_path, [turned, parts])
    assert [found[0][name].item() for name in turned] == [1 + 2j, 1 - 2j]
    assert [found[1][name].item() for name in parts] == [2, -2]


def test_parameters_and_what_requires_a_gradient_stay_such(shim: Any, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    state = {"weight": weight, "data": weight.data, "frozen": frozen, "loss": (2 * weight).sum()}
    found = kept(shim, tmp_path, state)
    assert [(type(each), each.requires_grad) for each in found.values()] == [
        (torch.nn.Parameter, True),
        (torch.Tensor, False),
        (torch.nn.Parameter, False),
        (torch.Tensor, True),
    ]
    assert found["weight"].data_ptr() == found["data"].data_ptr()


def test_a_state_that_cannot_be_copied_is_written_at_once(shim: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.seen = model(torch.ones(1, 2))  # no leaf: copy.deepcopy refuses it
    shim.save_in_background({"step": 1, "model": model}, tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=False)["step"] == 1
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    found = kept(shim, tmp_path, itself)
    assert found["itself"] is found


def test_what_lies_in_objects_on_a_device_leaves_no_room_for_a_second(shim: Any, tmp_path: Path) -> None:
    copies: dict[object, Any] = {}
    shim._copied({"kept": argparse.Namespace(weight=torch.zeros(2, device="meta"))}, copies, {})
    assert not shim._has_room_for(shim._Save({}, tmp_path / "a.pt", copies.values(), None).size)


def test_an_open_file_is_written_before_it_is_closed(shim: Any, tmp_path: Path) -> None:
    with (tmp_path / "a.pt").open("wb") as file:
        shim.save_in_background({"step": 1}, file)
    assert torch.load(tmp_path / "a.pt") == {"step": 1}
    memory = io.BytesIO()
    shim.save_in_background({"step": 2}, memory)
    assert torch.load(io.BytesIO(memory.getvalue())) == {"step": 2}


def test_a_link_stays_one_and_its_file_is_written(shim: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link = tmp_path / "latest.pt"
    link.symlink_to(Path("runs") / "latest.pt")
    shim.save_in_background({"step": 1}, link)
    shim.finish_saving()
    assert link.is_symlink()
    assert torch.load(tmp_path / "runs" / "latest.pt") == {"step": 1}


def test_what_is_no_file_is_not_replaced(shim: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = "import sys; sys.stdout.write(str(len(open(sys.argv[1], 'rb').read())))"
    reader = subprocess.Popen([sys.executable, "-c", script, pipe], stdout=subprocess.PIPE)
    shim.save_in_background({"step": 1}, pipe)
    told, _ = reader.communicate(timeout=LIMIT_S)
    assert int(told) > 0
    assert pipe.is_fifo()


LEFT = """
import torch

model = torch.nn.Linear(2, 2)

def train():
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        torch.save({"model": model.state_dict()}, "absent/a.pt")
        return

train()
"""


def test_an_error_is_told_where_the_loop_is_left_by_a_return(tmp_path: Path) -> None:
    answer = load().fixers["async-checkpoint"].rewrite(example_request("periodic-stall", LEFT))
    assert isinstance(answer, Edits)
    for name, text in dict(answer.files).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run([*LIGHT_PYTHON, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert "absent" in done.stderr
