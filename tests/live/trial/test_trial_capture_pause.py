"""Captures that begin early stop before or between steps: with no lock in hand, and without changing a number."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from watching import LIGHT_TORCH, LIMIT_NS

from diagnose.program import Program
from diagnose.trial.gates import numerics
from diagnose.trial.gates.capture_plan import CaptureRequest, bits, bits_again, luck
from diagnose.trial.gates.captures import Capture
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.gates.trajectory import Curve
from diagnose.trial.process.arm import Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.process.process_group import Group, Groups

GIB = 1 << 30
# What a data set or a compiler's cache does: whoever prepares it keeps the others waiting.
PROGRAM = f"""
{LIGHT_TORCH}
import fcntl, os, subprocess, time
from torch import nn
with open("prepared", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    open(f"holds-{{os.getpid()}}", "w").close()
    while os.path.exists("keep"):
        time.sleep(0.01)
torch.set_num_threads(1)
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "train.py").write_text(PROGRAM)
    return Program.parse(["train.py"], cwd=tmp_path)


class Watched(Gatekeeper):
    """Remembers the processes that it began early."""

    def groups(self) -> list[Group]:
        return [one.group for one in self._begun]

    def taken(self, *wanted: CaptureRequest) -> list[object]:
        self._take_all(self._missing(wanted))
        return [self._taken[one.key] for one in wanted]


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with Groups() as groups:
        place = Workplace(groups, tmp_path / "work", sys.executable, lambda _: environment)
        memory = Memory(1 << 20, 1 << 20, 90 * GIB, 100 * GIB, 1 << 20)
        yield Watched(place, LIMIT_NS, memory=memory)


def stopped(group: Group) -> int:
    """How many processes a program has, once all of them are stopped."""
    leader = psutil.Process(group.pid)
    family = [leader, *leader.children(recursive=True)]
    while {process.status() for process in family} != {psutil.STATUS_STOPPED}:  # a signal takes a moment to arrive
        group.rest()
    return len(family)


def test_they_stop_with_all_their_processes_and_give_the_numbers_that_they_would_have_given(
    keeper: Watched, program: Program
) -> None:
    again, (seed,) = bits_again(program), luck([program], 1, 20)
    keeper.begin([again, seed], [1.0, 1.0])
    assert all(keeper._stands(one, time.monotonic_ns() + LIMIT_NS) for one in keeper._begun)
    assert not any(list(one.folder.glob("rank0/claim")) for one in keeper._begun)  # no step has ended
    keeper.rest(LIMIT_NS)
    assert [stopped(group) for group in keeper.groups()] == [2, 2]  # also the one that leads a session of its own
    rested, curve, fresh = keeper.taken(again, seed, bits(program))
    assert isinstance(curve, Curve)
    assert len(curve.losses) == 20
    assert isinstance(rested, Capture)
    assert isinstance(fresh, Capture)
    assert numerics.repeats(fresh, rested)
    assert keeper.started == 3


def test_one_that_still_prepares_what_others_need_is_ended_rather_than_stopped(
    keeper: Watched, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagnose.trial.gates.capture_runner.EARLY_MORE_NS", 0)
    keep = program.root / "keep"
    keep.touch()
    again = bits_again(program)
    keeper.begin([again], [1.0, 1.0])
    (group,) = keeper.groups()
    while not list(program.root.glob("holds-*")):
        assert not group.exited
        group.rest()
    keeper.rest(0)
    assert keeper.groups() == []
    keep.unlink()
    assert isinstance(keeper.taken(bits(program))[0], Capture)  # nobody has the lock


def test_first_steps_that_are_there_in_time_are_taken(keeper: Watched, program: Program) -> None:
    keeper.begin([bits(program)], [1.0, 1.0])
    keeper.rest(LIMIT_NS)
    assert keeper.groups() == []
    assert isinstance(keeper.taken(bits(program))[0], Capture)
    assert keeper.started == 1


def test_first_steps_that_are_not_stop_behind_one_of_them(
    keeper: Watched, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diagnose.trial.gates.capture_runner.EARLY_MORE_NS", LIMIT_NS)
    endless = CaptureRequest(program, "bits", {"steps": 100_000, "values": True})
    keeper.begin([endless], [1.0, 1.0])
    (one,) = keeper._begun
    while not list(one.folder.glob("rank0/*")):
        one.group.rest()
    keeper.rest(0)
    assert stopped(one.group) == 2
    assert list(one.folder.glob("rank0/stands"))
    keeper.rest(LIMIT_NS)  # of a later trial: what stands is not waited for
    assert one.stopped
    keeper.drop()
    assert one.group.exited


def test_what_starts_early_leaves_the_cores_to_the_arms(keeper: Watched, program: Program) -> None:
    keeper.begin([bits(program)], [1.0, 1.0])
    (group,) = keeper.groups()
    assert psutil.Process(group.pid).nice() == min(19, psutil.Process().nice() + 10)
