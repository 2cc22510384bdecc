"""The gates beside the numerics gate, on a real program and on edits that five steps do not show to be wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.model import Gate, GateAnswer, GateCheck
from diagnose.program import Program
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.process_group import Groups
from diagnose.trial.process.workspace import Workspace
from diagnose.trial.whole_run.gate import WholeRunGate
from diagnose.trial.whole_run.runs import RunRequest, Runs

PROGRAM = f"""
{LIGHT_TORCH}
import csv, json, os
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(90, 8), torch.randn(90))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
best, history = float("inf"), []
epochs = 3
try:
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            loss = (model(x).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            history.append(loss.item())
        print(f"epoch {{epoch}} loss {{total / len(loader):.4f}}")
        if total < best:
            best = total
            torch.save({{"model": model.state_dict(), "epoch": epoch}}, "best.pt")
    print("trained")
finally:
    with open("history.json", "w") as file:
        json.dump(history, file)
"""

SAME = {
    "a comment": ("total = 0.0", "total = 0.0  # of the epoch"),
    "a file written beside its place first": (
        '"best.pt")',
        '"best.tmp"); os.replace("best.tmp", "best.pt")',
    ),
}
WRONG = {
    "a sum that became a count": ("total += loss.item()", "total += int(loss.item())", "whole run", "prints"),
    "a history that lacks its last entry": ("with open", "history.pop()\n    with open", "whole run", "history.json"),
    "an epoch's end that is skipped": ("if total < best:", "if total < best and epoch < 1:", "whole run", "best.pt"),
    "a checkpoint of a later state": ('"epoch": epoch}', '"epoch": epoch + 1}', "whole run", "epoch"),
    "a checkpoint that is not written": ('"best.pt")', "open(os.devnull, 'wb'))", "whole run", "best.pt"),
    "a history that an exception loses": (
        "history.append(loss.item())",
        "pending = globals().setdefault('pending', []); pending.append(loss.item())\n"
        "        history.extend(pending); pending.clear()\n        for _ in ():\n            pass",
        "exception",
        "history.json",
    ),
    "training that goes another way late": (
        "            loss.backward()",
        "            loss = loss * (1.0 if len(history) < 7 else 1.01)\n            loss.backward()",
        "whole run",
        "loss",
    ),
    "a history that Ctrl-C loses": (
        "finally:",
        "except KeyboardInterrupt:\n    history.clear()\n    raise\nfinally:",
        "interrupt",
        "history.json",
    ),
    "another exit code": ('print("trained")', 'print("trained"); sys.exit(3)', "whole run", "exit code 3"),
    "an exception at the end": ('print("trained")', 'print("trained"); [].pop()', "whole run", "exit code 1"),
}

Asked = Callable[..., tuple[GateCheck, ...]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Asks the gates about the program with one text replaced; the original's runs are kept."""
    home, folder = tmp_path_factory.mktemp("program"), tmp_path_factory.mktemp("trials")
    (home / "train.py").write_text(PROGRAM)
    copies = Workspace(Program.parse(["train.py"], cwd=home), folder, dict(os.environ), False)
    original = copies.make({}, "original")
    with Groups() as groups:
        place = Workplace(groups, folder, sys.executable, copies.environment_of, edited=copies.edited)
        gate = WholeRunGate(Runs(place, copies, LIMIT_NS, 2))

        def asked(
            before: str, after: str, kind: Gate = Gate.BITWISE, *, loading: bool = False
        ) -> tuple[GateCheck, ...]:
            assert before in PROGRAM
            patched = copies.make({"train.py": PROGRAM.replace(before, after, 1)}, f"patched-{len(copies.edited)}")
            return gate.check(kind, original, patched, loading=loading)

        yield asked


@pytest.mark.parametrize("name", SAME)
def test_a_program_that_does_the_same_passes(ask: Asked, name: str) -> None:
    checks = ask(*SAME[name])
    assert [(check.name, check.answer) for check in checks] == [
        ("whole run", "passed"),
        ("exception", "passed"),
        ("interrupt", "passed"),
    ]


LIKE_OTHERS = {
    "a history that lacks its last entry": "a history that an exception loses",
    "a checkpoint of a later state": "an epoch's end that is skipped",
    "an exception at the end": "another exit code",
}
"""What the same comparison finds as the case beside it."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in LIKE_OTHERS else []) for name in WRONG]
)
def test_what_shows_only_after_the_first_steps_is_refused(ask: Asked, name: str) -> None:
    before, after, gate, told = WRONG[name]
    refused = {check.name: check.detail for check in ask(before, after) if check.answer is GateAnswer.REFUSED}
    assert told in refused[gate]


def test_a_rounding_fix_may_move_figures_as_far_as_rounding_does(ask: Asked) -> None:
    moved = ask("loss.backward()", "(loss * (1 + 2e-7)).backward()", Gate.ROUNDING)
    assert [check.answer for check in moved] == [GateAnswer.PASSED] * 3
    wrong = ask("loss.backward()", "(loss * 1.01).backward()", Gate.ROUNDING)
    assert wrong[0].answer is GateAnswer.REFUSED


def test_loaders_that_yield_other_samples_are_refused(ask: Asked) -> None:
    held = ask("shuffle=True)", "shuffle=True, num_workers=1)", loading=True)
    assert (held[-1].name, held[-1].answer) == ("data order", "passed")
    other = ask("shuffle=True)", "shuffle=True, sampler=None, drop_last=True)", loading=True)
    assert other[-1].answer is GateAnswer.REFUSED


def test_a_fix_that_changes_the_training_has_no_such_gate(ask: Asked) -> None:
    assert ask("lr=0.05", "lr=0.1", Gate.TRAINING) == ()


def test_a_program_that_fails_by_itself_is_compared_and_not_called_safe(tmp_path: Path) -> None:
    text = PROGRAM.replace('print("trained")', 'raise ValueError(f"stopped at {total:.3f}")')
    (tmp_path / "train.py").write_text(text)
    copies = Workspace(Program.parse(["train.py"], cwd=tmp_path), tmp_path / "trials", dict(os.environ), False)
    original, same = copies.make({}, "original"), copies.make({"train.py": f"{text}\n# the same"}, "same")
    other = copies.make({"train.py": text.replace("stopped at", "ended at")}, "other")
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "trials", sys.executable, copies.environment_of, edited=copies.edited)
        gate = WholeRunGate(Runs(place, copies, LIMIT_NS, 2))
        assert gate.check(Gate.BITWISE, original, same)[0].answer is GateAnswer.UNVERIFIED
        assert gate.check(Gate.BITWISE, original, other)[0].answer is GateAnswer.REFUSED


def test_a_shortened_run_has_first_and_last_batches_and_epochs_and_a_normal_end(tmp_path: Path) -> None:
    text = PROGRAM.replace("randn(90", "randn(900").replace("epochs = 3", "epochs = 40")
    (tmp_path / "train.py").write_text(text)
    copies = Workspace(Program.parse(["train.py"], cwd=tmp_path), tmp_path / "trials", dict(os.environ), False)
    original = copies.make({}, "original")
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "trials", sys.executable, copies.environment_of, edited=copies.edited)
        (run,) = Runs(place, copies, LIMIT_NS).observe([RunRequest(original, {"batches": 4, "turns": 3})])
    assert run.steps == 3 * 4
    assert run.returncode == 0
    assert [line.numbers[0] for line in run.printed.lines[:-1]] == ["0", "1", "39"]
    assert run.printed.lines[-1].text == "trained"
    assert set(run.files) == {"best.pt", "history.json"}


@pytest.mark.parametrize(
    ("recipe", "told"),
    [({"seconds": 0.01}, "cut"), ({"leave": {"how": "interrupt", "call": 3, "ends": True}}, "left")],
)
def test_a_program_that_trains_on_after_an_interrupt_is_ended_some_calls_later(
    recipe: dict[str, object], told: str, tmp_path: Path
) -> None:
    head = PROGRAM[: PROGRAM.index("best, history")] + "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
    loop = "while True:\n    model(data.tensors[0]).sum().backward()\n    optimizer.step()\n"
    (tmp_path / "train.py").write_text(head + loop)
    copies = Workspace(Program.parse(["train.py"], cwd=tmp_path), tmp_path / "trials", dict(os.environ), False)
    original = copies.make({}, "original")
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "trials", sys.executable, copies.environment_of, edited=copies.edited)
        (run,) = Runs(place, copies, LIMIT_NS).observe([RunRequest(original, recipe)])
    assert run.returncode == 1
    assert getattr(run, told)
    assert run.calls == run.steps + 1
    if told == "left":
        assert run.calls == 3 + 11
