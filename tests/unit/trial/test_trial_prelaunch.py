"""Captures that are there when a gate asks, as they started with its trial; only where there is room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from composing import fixer, replacing
from simulated_trials import GIB, Machine, simulated, table

from diagnose import verdict
from diagnose.model import Decision, Gate
from diagnose.program import Program
from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.arm_protocol import ArmProtocol
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.bench import Bench
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.prelaunch import Prelaunch
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble, Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_S


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than of a real trial: enough for programs that differ by half."""
    monkeypatch.setattr(verdict, "RESAMPLES", 200)


ROOMY = Memory(4 * GIB, 4 * GIB, 136 * GIB, 140 * GIB, 1 << 20)


# ruff: noqa: ARG002 - the names are those of an arm


@dataclass
class Clock:
    now_ns: int = 0
    alive: int = 0


@dataclass
class Starting:
    """An arm that is ready some seconds after its start."""

    clock: Clock
    takes_s: float
    began_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.began_ns = self.clock.now_ns
        self.clock.alive += 1

    def ready(self, limit_ns: int) -> Ready:
        ready_ns = self.began_ns + round(self.takes_s * NS_PER_S)
        self.clock.now_ns = max(self.clock.now_ns, min(ready_ns, self.began_ns + limit_ns))
        if ready_ns > self.began_ns + limit_ns:
            raise ArmFailed(Trouble.HUNG, "no answer in time")
        return Ready(5, 1000, Memory(), ready_ns - self.began_ns)

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        return Block(steps, steps * 1000, 0)

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        return []

    def close(self) -> None:
        self.clock.alive -= 1


@dataclass
class Stage:
    """A program of 20 ms a step, and the trial of one fix."""

    folder: Path
    gate: Gate = Gate.BITWISE
    memory: Memory = ROOMY
    ranks: int = 1
    cores: int = 16
    machine: Machine = field(default_factory=lambda: Machine(lambda text: 20 if "slow" in text else 10))

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text("part = 'slow'\n")
        self.program = Program.parse(["train.py"], cwd=self.folder)
        self.fixer = fixer("fix", replacing("slow", "fast"), self.gate)

    def run(self) -> Decision:
        deadline = Deadline(None, self.machine.clock)
        with (
            simulated(self.machine, self.cores),
            Bench(
                self.program,
                self.folder / "trials",
                Schedule(),
                deadline,
                WatchedProgram(self.memory, start_ns=12 * NS_PER_S, step_ns=20_000_000, ranks=self.ranks),
            ) as bench,
        ):
            original = bench.copy({}, "original")
            patched = bench.copy({"train.py": "part = 'fast'\n"}, "patched")
            bench.prepare(original)
            told_ns = bench.trial_ns(Plan(self.fixer)) + bench.final_ns(held=True, runs=1)
            decision = bench.attempt(self.fixer, original, patched).verdict.decision
            bench.steps_alone([(original, "a-0"), (patched, "b-0")], 75)
            assert self.machine.now_ns < told_ns, table(self.machine)
        assert self.machine.alive == 0
        return decision

    @property
    def gate_s(self) -> float:
        """The time that was waited for captures, in s."""
        return (self.machine.spent_ns["gates"] + self.machine.spent_ns["trajectories"]) / NS_PER_S


@pytest.mark.parametrize("gate", list(Gate))
def test_the_numbers_of_a_trial_start_with_it(gate: Gate, tmp_path: Path) -> None:
    stage = Stage(tmp_path, gate)
    assert stage.run() is Decision.KEPT
    assert stage.gate_s < 0.5 * stage.machine.start_s


@pytest.mark.parametrize(
    "more",
    [{"memory": Memory()}, {"ranks": 2}, {"cores": 4}],
    ids=["unknown memory", "several ranks", "few cores"],
)
def test_without_room_everything_starts_when_it_is_its_turn(more: dict[str, object], tmp_path: Path) -> None:
    stage = Stage(tmp_path, **more)  # type: ignore[arg-type]
    assert stage.run() is Decision.KEPT
    assert stage.gate_s > stage.machine.start_s


@pytest.mark.parametrize(
    ("gate", "rounds_to", "expected"),
    [
        (Gate.BITWISE, None, [("original", "bits-again")]),
        (Gate.ROUNDING, None, [("patched", "float64")]),
        (Gate.ROUNDING, "tf32", []),
        (Gate.TRAINING, None, []),
    ],
)
def test_what_a_gate_may_ask_for_later_starts_with_the_trial_and_waits(
    gate: Gate, rounds_to: str | None, expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Where rounding alone moves the gradients of a program, both programs are held against each other in float64."""
    (tmp_path / "train.py").write_text("")
    found = Program.parse(["train.py"], cwd=tmp_path)
    original, patched = (replace(found, root=Path(name)) for name in ("original", "patched"))
    beside = Prelaunch(Gatekeeper(cast("Workplace", None), 1, memory=ROOMY), generations=2)
    wanted = beside.wanted(fixer("fix", replacing("slow", "fast"), gate, rounds_to=rounds_to), original, patched, None)
    assert [(one.program.root.name, one.name) for one in wanted if one.spare] == expected
    assert all(one.rests for one in wanted if one.spare)


@pytest.mark.parametrize(("promised", "expected"), [(0.05, 4), (0.5, 2)])
def test_a_fix_that_promises_much_and_compiles_does_not_wait_for_a_second_generation(
    promised: float, expected: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("part = 'slow'\n")
    machine = Machine(lambda text: 20 if "slow" in text else 10)
    program, deadline = Program.parse(["train.py"], cwd=tmp_path), Deadline(None, machine.clock)
    watched = WatchedProgram(ROOMY, start_ns=12 * NS_PER_S, step_ns=20_000_000)
    with simulated(machine), Bench(program, tmp_path / "trials", Schedule(), deadline, watched) as bench:
        original = bench.copy({}, "original")
        patched = bench.copy({"train.py": "import torch\nmodel = torch.compile(model)\n"}, "patched")
        bench.prepare(original)
        tried = bench.attempt(
            fixer("fix", replacing("slow", "fast"), Gate.BITWISE), original, patched, promised=promised
        )
    assert tried.verdict.decision is Decision.KEPT
    assert machine.started["trials"] == expected


@dataclass
class Crowded:
    """A machine on which one arm alone may live beside what started early."""

    clock: Clock
    early: bool = True
    cleared: int = 0

    def clear(self, _why: str) -> bool:
        had, self.early = self.early, False
        self.cleared += 1
        return had

    def starter(self, _number: int) -> ArmProtocol:
        crowded = self

        class Here(Starting):
            def ready(self, limit_ns: int) -> Ready:
                if crowded.early:
                    raise ArmFailed(Trouble.OUT_OF_MEMORY, "CUDA out of memory")
                return Ready(5, 20_000_000, Memory(), 1)

            def run(self, steps: int, drop: int, limit_ns: int) -> Block:
                return Block(steps, steps * 20_000_000, 0)

        return Here(self.clock, 1)


def test_where_memory_runs_out_over_what_started_early_that_goes_and_the_arms_start_again() -> None:
    machine = Crowded(Clock())
    duel = ABTrial(Schedule(pairs=8), Deadline(), 0.01, fits=True, clear=machine.clear)
    found = compare(duel, machine.starter, machine.starter)
    assert found.failed is None
    assert not found.alternated
    assert len(found.pairs) == 8
    assert (machine.cleared, machine.clock.alive) == (1, 0)


@dataclass
class SingleTrials:
    """A program of which one process at a time may run, as its lock file or its port has it."""

    clock: Clock
    early: bool = True
    told: list[str] = field(default_factory=list)

    def clear(self, why: str) -> bool:
        had, self.early = self.early, False
        self.told.append(why)
        return had

    def starter(self, _number: int) -> ArmProtocol:
        alone = self

        class Here(Starting):
            def ready(self, limit_ns: int) -> Ready:
                if alone.early:
                    raise ArmFailed(Trouble.CRASHED, "address already in use")
                return Ready(5, 20_000_000, Memory(), 1)

            def run(self, steps: int, drop: int, limit_ns: int) -> Block:
                return Block(steps, steps * 20_000_000, 0)

        return Here(self.clock, 1)


def test_a_program_that_does_not_start_beside_others_of_it_starts_without_them() -> None:
    machine = SingleTrials(Clock())
    control = ABTrial(Schedule(pairs=8), Deadline(), None, fits=True, clear=machine.clear)
    found = compare(control, machine.starter, machine.starter)
    assert found.failed is None
    assert (len(found.pairs), found.generations) == (8, 2)  # what was lost is no generation
    assert (machine.told, machine.clock.alive) == (["the program did not start"], 0)


def test_a_patched_program_that_does_not_start_has_failed() -> None:
    machine, sound = SingleTrials(Clock()), SingleTrials(Clock(), early=False)
    trial = ABTrial(Schedule(pairs=8), Deadline(), 0.01, fits=True, clear=machine.clear)
    found = compare(trial, sound.starter, machine.starter)
    assert found.failed is not None
    assert machine.told == []


def test_that_memory_ran_out_over_it_is_said_once_and_nothing_starts_early_any_more() -> None:
    keeper = Gatekeeper(cast("Workplace", None), 1, memory=ROOMY)
    told: list[str] = []
    beside = Prelaunch(keeper, 2, on_phase=lambda phase, _detail: told.append(phase))
    keeper.shares_begun = lambda: [1.0]  # type: ignore[method-assign]
    keeper.drop = lambda: setattr(keeper, "shares_begun", list)  # type: ignore[method-assign]
    assert beside.clear()
    assert not beside.clear()
    assert told == ["memory ran out beside what had started early"]
    assert beside.closed
    assert not beside.fits_beside([], [])
