"""The trajectory gate: on made-up losses, and on a little program that trains under three seeds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.model import Gate, GateResult
from diagnose.program import Program
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.gates.trajectory import Curve, trajectory
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.process.process_group import Groups
from diagnose.trial.schedule import Deadline
from diagnose.units import NS_PER_MS, NS_PER_S

STEPS = 100
LUCK = np.random.default_rng(7)


def run(luck: np.random.Generator, level: float = 0.0, steps: int = STEPS) -> Curve:
    """A falling loss with the noise of batches, and with the luck of a seed all along."""
    at = np.arange(steps)
    return Curve(2.3 * np.exp(-at / 60) + level + 0.05 * luck.standard_normal(steps))


SEEDS = [run(np.random.default_rng(seed), level) for seed, level in enumerate((-0.04, 0.0, 0.04))]


def changed(by: Callable[[np.ndarray], np.ndarray]) -> list[Curve]:
    return [Curve(by(curve.losses.copy())) for curve in SEEDS]


def test_losses_that_are_off_by_less_than_luck_pass_and_the_figures_are_told() -> None:
    answer = trajectory(SEEDS, changed(lambda losses: losses + 0.01 * LUCK.standard_normal(STEPS)))
    assert answer.passed is True
    assert answer.gate is Gate.TRAINING
    assert answer.detail.startswith("losses of 100 steps under 3 seeds stay inside the original's spread; at most 0.")


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (lambda losses: losses * 1.15, "the loss is off by +0."),
        (lambda losses: losses + np.linspace(0, 0.5, STEPS), "the loss is off by +0."),
        (lambda losses: losses + 0.00195 * np.arange(STEPS) * np.sign(50 - np.arange(STEPS)), "the loss"),
        (lambda losses: np.where(np.arange(STEPS) == 70, np.nan, losses), "the loss of step 71 is NaN"),
    ],
    ids=["scaled", "drifting", "spiked", "NaN"],
)
def test_losses_outside_of_luck_fail(by: Callable[[np.ndarray], np.ndarray], said: str) -> None:
    answer = trajectory(SEEDS, changed(by))
    assert answer.passed is False
    assert answer.detail.startswith(said)


def test_a_slow_drift_under_every_seed_fails_before_it_leaves_the_band() -> None:
    steady = [Curve(curve.losses - 0.05 * LUCK.standard_normal(STEPS) * 0) for curve in SEEDS]
    drifting = [Curve(curve.losses + np.linspace(-0.07, 0.07, STEPS)) for curve in steady]
    answer = trajectory(steady, drifting)
    assert answer.passed is False
    assert "drifts away" in answer.detail


def test_one_seed_far_off_fails_and_one_that_is_merely_unlucky_does_not() -> None:
    far = [*SEEDS[:2], Curve(SEEDS[2].losses + 0.5)]
    unlucky = [*SEEDS[:2], Curve(SEEDS[2].losses + 0.08)]
    assert trajectory(SEEDS, far).passed is False
    assert trajectory(SEEDS, unlucky).passed is True


def test_a_fix_that_draws_other_random_numbers_seldom_fails() -> None:
    """The worst case: nothing of a seed's luck is shared by the two programs."""

    def luck(seed: int) -> list[Curve]:
        generator = np.random.default_rng(seed)
        return [run(generator, 0.04 * generator.standard_normal()) for _ in range(6)]

    def fails(trial: int) -> bool:
        before, after = luck(2 * trial), luck(2 * trial + 1)
        return all(trajectory(before[:seeds], after[:seeds]).passed is False for seeds in (3, 6))

    assert sum(map(fails, range(200))) <= 10


def test_a_program_that_no_seed_touches_may_still_round_otherwise() -> None:
    same = [SEEDS[1]] * 3
    assert trajectory(same, [Curve(SEEDS[1].losses + 0.001)] * 3).passed is True
    assert trajectory(same, [Curve(SEEDS[1].losses + 0.02)] * 3).passed is False


@pytest.mark.parametrize(
    ("originals", "patched", "said"),
    [
        (SEEDS[:2], SEEDS[:2], "2 seeds are too few"),
        ([run(LUCK, steps=49)] * 3, SEEDS, "the program ends after 49 steps; 50 are needed"),
        (SEEDS, [run(LUCK, steps=30)] * 3, "the program ends after 30 steps"),
        (changed(lambda losses: losses * np.nan), SEEDS, "the original's own loss"),
    ],
    ids=["seeds", "short", "shorter", "NaN"],
)
def test_what_cannot_be_compared_is_unverified(originals: list[Curve], patched: list[Curve], said: str) -> None:
    answer = trajectory(originals, patched)
    assert answer.passed is None
    assert answer.detail.startswith(said)


def test_memory_that_grows_only_in_the_patched_program_fails() -> None:
    held = [Curve(curve.losses, np.full(STEPS, 1e9)) for curve in SEEDS]
    grows = [Curve(curve.losses, np.linspace(1e9, 1.1e9, STEPS)) for curve in SEEDS]
    jumps = [Curve(curve.losses, np.where(np.arange(STEPS) > 70, 2e9, 1e9)) for curve in SEEDS]
    answer = trajectory(held, grows)
    assert answer.passed is False
    assert answer.detail == "the memory held grows by 986 KiB every step"
    assert trajectory(grows, grows).passed is True
    assert trajectory(held, jumps).passed is True


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


def test_the_optimizers_must_be_made_of_the_same_with_the_same_settings() -> None:
    def made_of(settings: dict[str, object], parameters: int = 2, kept: str = "exp_avg") -> Curve:
        group = {"shapes": [[4]] * parameters, "settings": settings, "kept": [[kept]] * parameters}
        return Curve(SEEDS[0].losses, optimizers={"1": [{"kind": "AdamW", "groups": [group]}]})

    as_it_was = made_of({"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8})
    rounded = made_of({"lr": 1e-3 + 1e-11, "betas": [0.9, 0.999], "eps": 1e-8, "new": True})
    for changed, said in {
        "eps": (made_of({"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-6}), "eps is 1e-06, was 1e-08"),
        "betas": (made_of({"lr": 1e-3, "betas": [0.9, 0.99], "eps": 1e-8}), "betas is [0.9, 0.99], was [0.9, 0.999]"),
        "one": (made_of({}, 1), "1 parameters, not 2 as before"),
        "kept": (made_of({}, kept="step"), "of parameter 0 it keeps step, not exp_avg as before"),
    }.values():
        answer = trajectory([as_it_was] * 3, [changed] * 3)
        assert answer.passed is False
        assert answer.detail == f"optimizer 0, group 0: {said}"
    assert trajectory([as_it_was] * 3, [rounded] * 3).passed is True


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
