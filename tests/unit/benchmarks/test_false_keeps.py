"""How rarely a patch that changes nothing is kept: whole sessions on a machine whose processes differ by luck.

The bench, its schedule, its control with a second look, and the statistics are the real ones; processes are simulated
(see simulated_trials.py), and gate and mechanism always agree, so that times alone decide.
"""

from __future__ import annotations

import types
from collections import Counter
from pathlib import Path

import pytest
from composing import fixer, replacing
from simulated_trials import Machine, simulated

from diagnose import verdict
from diagnose.model import Decision
from diagnose.program import Program
from diagnose.trial import bench
from diagnose.trial.ab.aa_control import AAControl
from diagnose.trial.bench import Bench
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.units import NS_PER_S
from diagnose.verdict import LEAST_SAVING

SESSIONS = 200
BAR = 0.05
NOTHING = fixer("nothing", replacing("", ""))
NO_PROCESSES = types.SimpleNamespace(close=lambda: None)


def program_in(folder: Path) -> Program:
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(f"# {folder.name}\n")
    return Program.parse(["train.py"], cwd=folder)


def sessions(folder: Path, promised: float, step_ms: float = 20, budget_s: int | None = None) -> Counter[str]:
    """Of so many sessions of a control and one trial: fixes kept, those fast enough by themselves, second looks, and
    the pairs of all controls."""
    seen: Counter[str] = Counter()
    machine = Machine(lambda _text: step_ms, noise=0.005, luck=0.02)
    original, twin, patched = (program_in(folder / name) for name in ("original", "twin", "patched"))
    with simulated(machine):
        for _ in range(SESSIONS):
            told: list[AAControl] = []
            deadline = Deadline.within(None if budget_s is None else budget_s * NS_PER_S, machine.clock)
            one = Bench(original, folder, Schedule(), deadline, on_control=told.append)
            control = one.control(original, twin, promised=[promised])
            assert control is not None
            seen["control pairs"] += control.pairs
            found = one.attempt(NOTHING, original, patched).verdict
            assert found.saving is not None
            seen["kept"] += found.decision is Decision.KEPT
            seen["fast enough"] += found.saving.low > LEAST_SAVING
            seen["second looks"] += len(told)
    return seen


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warden for benches that start nothing; fewer resamples than of a real trial."""
    monkeypatch.setattr(bench, "Groups", lambda _cancelled: NO_PROCESSES)
    monkeypatch.setattr(verdict, "RESAMPLES", 200)


@pytest.mark.parametrize("promised", [0.0, 1.0], ids=["fine control", "coarse control"])
def test_of_two_hundred_patches_that_change_nothing_fewer_than_one_in_twenty_is_kept(
    tmp_path: Path, promised: float
) -> None:
    seen = sessions(tmp_path, promised)
    assert seen["fast enough"] > BAR * SESSIONS  # it is the control that tells them from a faster program
    assert seen["kept"] < BAR * SESSIONS
    assert (seen["second looks"] > 0) == (promised > 0)


def test_a_control_that_a_budget_cuts_off_lets_no_more_pass(tmp_path: Path) -> None:
    free, short = (sessions(tmp_path / name, 0.0, budget_s=budget) for name, budget in (("free", None), ("short", 90)))
    assert short["control pairs"] < 0.7 * free["control pairs"]
    assert short["fast enough"] > BAR * SESSIONS
    assert short["kept"] < BAR * SESSIONS


def test_a_control_of_one_generation_lets_no_more_pass(tmp_path: Path) -> None:
    """It says nothing of the luck of processes, which is far larger here than any that was seen."""
    seen = sessions(tmp_path, 1.0, budget_s=60)
    assert seen["control pairs"] == SESSIONS * Schedule().screen_pairs
    assert seen["fast enough"] > BAR * SESSIONS
    assert seen["kept"] < BAR / 5 * SESSIONS


def test_long_steps_take_half_the_pairs_and_no_more_false_keeps(tmp_path: Path) -> None:
    """A block of them is two steps, whose noise is larger than that of fifteen; luck is that of any process."""
    seen = sessions(tmp_path, 0.5, step_ms=3000)
    assert seen["fast enough"] > BAR * SESSIONS
    assert seen["kept"] < BAR * SESSIONS
    assert seen["second looks"] > 0
