"""The trajectory gate on a little program that trains under three seeds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.process.process_group import Groups
from diagnose.trial.schedule import Deadline
from diagnose.units import NS_PER_MS, NS_PER_S

PROGRAM = f"""
import sys
{LIGHT_TORCH}
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)
data = torch.randn(64, 12)
labels = data[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100_000):
    at = 8 * (step % 8)
    x, y = data[at : at + 8], labels[at : at + 8]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
LOSS = "F.cross_entropy(model(x), y)"
AUTOCAST = (f"    loss = {LOSS}", f"    with torch.autocast('cpu', torch.bfloat16): loss = {LOSS}")

Check = Callable[..., GateResult]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Check]:
    """Runs the gate on the program and on the program with one text replaced; what was taken down is kept."""
    room = tmp_path_factory.mktemp("trajectories")
    placed: dict[str, Program] = {}

    def place(text: str) -> Program:
        if text not in placed:
            folder = room / f"program{len(placed)}"
            folder.mkdir()
            (folder / "train.py").write_text(text)
            placed[text] = Program.parse(["train.py"], cwd=folder)
        return placed[text]

    with Groups() as groups:
        workplace = Workplace(groups, room / "work", sys.executable, lambda _: {**os.environ, "OMP_NUM_THREADS": "1"})
        keeper = Gatekeeper(workplace, LIMIT_NS, memory=Memory(host_bytes=1 << 28), step_ns=NS_PER_MS)

        def run(old: str, new: str, rounds_to: str | None = None, program: str = PROGRAM) -> GateResult:
            assert old in program
            return keeper.check(Gate.TRAINING, place(program), place(program.replace(old, new)), rounds_to)

        yield run


def test_other_dropout_is_other_luck_not_another_training(check: Check) -> None:
    answer = check("    optimizer.zero_grad()", "    torch.rand(3)\n    optimizer.zero_grad()")
    assert answer.passed is True, answer.detail
    assert answer.detail.startswith("losses of 200 steps under 3 seeds shifted from the program's own stay inside")


def test_a_forward_pass_in_bfloat16_passes(check: Check) -> None:
    answer = check(*AUTOCAST, "bf16")
    assert answer.passed is True, answer.detail


WRONG = {
    "a wrong scale": (LOSS, f"{LOSS} * 1.2", "the loss is off by +"),
    "a parameter left out": (
        "model.parameters()",
        "list(model.parameters())[1:]",
        "optimizer 0, group 0: 5 parameters",
    ),
    "labels of another batch": (
        "labels[at",
        "labels[(at + 8) % 64 : (at + 8) % 64 + 8]; labels[at",
        "the loss is off by",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_fix_never_passes(check: Check, name: str) -> None:
    old, new, said = WRONG[name]
    answer = check(old, new)
    assert answer.passed is False, answer.detail
    assert answer.detail.startswith(said), answer.detail


def test_steps_whose_update_a_loss_scaler_leaves_out_are_not_compared(check: Check) -> None:
    scaled = (
        "    scaler = scaler if step else torch.amp.GradScaler('cpu')\n"
        "    scaler.scale(loss).backward()\n"
        "    if step < 20: model[0].weight.grad.fill_(float('inf'))\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
    )
    assert check("    loss.backward()\n    optimizer.step()\n", scaled).passed is True
    never = scaled.replace("if step < 20: ", "")
    assert check("    loss.backward()\n    optimizer.step()\n", never).passed is False


def test_a_dropped_gradient_is_no_rounding_to_bfloat16(check: Check) -> None:
    dropped = "    model[4].bias.grad.zero_()\n    optimizer.step()"
    answer = check("    optimizer.step()", dropped, "bf16")
    assert answer.passed is False
    assert "where its number format explains" in answer.detail


def test_a_program_too_short_to_compare_is_unverified(check: Check) -> None:
    answer = check("lr=3e-3", "lr=0.003", program=PROGRAM.replace("100_000", "20"))
    assert answer.passed is None
    assert answer.detail.startswith("the program ends after 20 steps; 50 are needed")


def keeper(tmp_path: Path, groups: Groups, **more: object) -> Gatekeeper:
    return Gatekeeper(Workplace(groups, tmp_path, sys.executable, lambda _: {}), NS_PER_S, **more)  # type: ignore[arg-type]


def test_without_time_it_is_unverified_and_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    program = Program.parse(["train.py"], cwd=tmp_path)
    with Groups() as groups:
        late = keeper(tmp_path, groups, deadline=Deadline(0))
        passed = late.check(Gate.TRAINING, program, program)
        bits = late.check(Gate.BITWISE, program, program)
        unasked = keeper(tmp_path, groups, step_ns=NS_PER_S).check(Gate.TRAINING, program, program, asked=False)
    assert passed.detail == "the budget left no time for 50 steps under 3 seeds"
    assert unasked.detail == (
        "its trajectory was not compared: 50 steps of the original under 3 seeds would take 2 min 30 s"
    )
    assert bits.detail == "the budget left no time for it (bits)"
    assert passed.passed is bits.passed is unasked.passed is None
    assert late.started == 0


@pytest.mark.parametrize(("step_ns", "steps"), [(-1, 50), (NS_PER_MS, 200), (50 * NS_PER_MS, 100), (NS_PER_S, 50)])
def test_more_steps_are_taken_where_they_cost_little(tmp_path: Path, step_ns: int, steps: int) -> None:
    with Groups() as groups:
        assert keeper(tmp_path, groups, step_ns=step_ns)._trajectory_steps() == steps
