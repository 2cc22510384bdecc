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
from diagnose.trial import trial_runner
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


def sessions(
    folder: Path, *, step_ms: float = 20, budget_s: int | None = None, noise: float = 0.005, luck: float = 0.02
) -> Counter[str]:
    """Of so many sessions of one trial: fixes kept, those on the word of one generation, those fast enough by
    themselves, those that were asked for more pairs, and controls that a verdict asked for."""
    seen: Counter[str] = Counter()
    machine = Machine(lambda _text: step_ms, noise=noise, luck=luck)
    original, patched = (program_in(folder / name) for name in ("original", "patched"))
    with simulated(machine):
        for _ in range(SESSIONS):
            told: list[AAControl] = []
            deadline = Deadline.within(None if budget_s is None else budget_s * NS_PER_S, machine.clock)
            one = Bench(original, folder, Schedule(), deadline, on_control=told.append)
            one.prepare(original)
            found = one.attempt(NOTHING, original, patched, promised=0.5).verdict
            seen["asked again"] += found.pairs > Schedule().pairs
            seen["kept"] += found.decision is Decision.KEPT
            seen["sure"] += found.decision is Decision.KEPT and found.generations == 1
            seen["fast enough"] += found.saving is not None and found.saving.low > LEAST_SAVING
            seen["controls"] += len(told)
    return seen


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warden for benches that start nothing; fewer resamples than of a real trial."""
    monkeypatch.setattr(trial_runner, "Groups", lambda _cancelled: NO_PROCESSES)
    monkeypatch.setattr(verdict, "RESAMPLES", 200)


@pytest.mark.parametrize("budget_s", [None, 90, 60])
def test_of_two_hundred_patches_that_change_nothing_fewer_than_one_in_twenty_is_kept(
    tmp_path: Path, budget_s: int | None
) -> None:
    """The luck of these processes is larger than any that was seen; a budget that cuts a control off changes nothing"""
    seen = sessions(tmp_path, budget_s=budget_s)
    assert seen["fast enough"] > BAR * SESSIONS  # it is the control that tells them from a faster program
    assert (seen["controls"] > 0) == (budget_s is None)
    assert seen["kept"] < BAR * SESSIONS
    assert seen["sure"] == 0


def test_long_steps_take_half_the_pairs_and_no_more_false_keeps(tmp_path: Path) -> None:
    """A block of them is two steps, whose noise is larger than that of fifteen; luck is that of any process."""
    seen = sessions(tmp_path, step_ms=3000)
    assert seen["fast enough"] > BAR * SESSIONS
    assert seen["kept"] < BAR * SESSIONS


@pytest.mark.parametrize("noise", [0.2, 0.6, 1.2])
def test_noise_is_hardly_ever_taken_for_a_saving_that_no_other_processes_need_to_show(
    noise: float, tmp_path: Path
) -> None:
    """Of a step; a block has fifteen of them."""
    seen = sessions(tmp_path, noise=noise, luck=0.005)
    assert seen["sure"] < BAR * SESSIONS
    assert seen["kept"] < BAR * SESSIONS


@pytest.mark.parametrize(("noise", "luck"), [(0.6, 0.02), (1.2, 0.02)])
def test_more_pairs_for_what_was_undecided_keep_hardly_more_that_changes_nothing(
    noise: float, luck: float, tmp_path: Path
) -> None:
    """Where blocks are so noisy that chance alone often looks like a saving of a twentieth."""
    seen = sessions(tmp_path, noise=noise, luck=luck)
    assert seen["asked again"] > BAR * SESSIONS
    assert seen["kept"] < BAR * SESSIONS
