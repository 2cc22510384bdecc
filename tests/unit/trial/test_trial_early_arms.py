"""What starts before its turn: arms that rest, captures that are there when a gate asks; all of it only with room."""

from __future__ import annotations

import contextlib
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
from diagnose.trial.planning.early_arms import Ahead, Turn
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.prelaunch import Prelaunch, UpcomingWork
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
    asked: int = 0
    began_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.began_ns = self.clock.now_ns
        self.clock.alive += 1

    def ready(self, limit_ns: int) -> Ready:
        self.asked += 1
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


def program(name: str) -> Program:
    root = Path("/copies") / name
    return Program(("train.py",), "script", root / "train.py", root, root)


ONE, OTHER = program("one"), program("other")


def waiting(clock: Clock, **takes_s: float) -> tuple[Ahead, dict[str, Starting]]:
    made: dict[str, Starting] = {}

    def make(started: Program, _name: str) -> ArmProtocol:
        return made.setdefault(started.root.name, Starting(clock, takes_s[started.root.name]))

    ahead = Ahead(make, lambda: clock.now_ns)
    for name in takes_s:
        ahead.start(Turn.TRIAL, program(name), 1.0)
    return ahead, made


def test_an_arm_that_rests_is_asked_once_whether_it_is_ready() -> None:
    clock = Clock()
    ahead, made = waiting(clock, one=10)
    clock.now_ns = 10 * NS_PER_S
    ahead.rest()
    arm = ahead.take(Turn.TRIAL, ONE.root)
    assert arm is not None
    assert arm.ready(1).started_ns == 10 * NS_PER_S
    assert made["one"].asked == 1
    assert ahead.take(Turn.TRIAL, ONE.root) is None


def test_one_that_takes_much_longer_than_those_beside_it_is_ended() -> None:
    clock = Clock()
    ahead, _ = waiting(clock, one=11, other=100)
    clock.now_ns = 10 * NS_PER_S  # those beside it are ready now
    ahead.rest()
    assert clock.now_ns < 20 * NS_PER_S
    assert (ahead.count(Turn.TRIAL, ONE.root), ahead.count(Turn.TRIAL, OTHER.root)) == (1, 0)
    assert clock.alive == 1


def test_arms_wait_for_one_thing_and_what_is_not_wanted_any_more_is_ended() -> None:
    clock = Clock()
    ahead, _ = waiting(clock, one=1, other=1)
    ahead.start(Turn.LAST_RUN, ONE, 1.5)
    assert ahead.take(Turn.LAST_RUN, OTHER.root) is None
    ahead.end(Turn.TRIAL, but=[OTHER.root])
    assert ahead.shares == [1.0, 1.5]
    assert clock.alive == 2


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
    def starts(self) -> float:
        """How many starts of a process were waited for, one after the other."""
        waited = sum(self.machine.spent_ns[what] for what in self.machine.spent_ns if what.endswith("starts"))
        return waited / NS_PER_S / self.machine.start_s


@pytest.mark.parametrize("gate", list(Gate))
def test_the_numbers_and_the_last_run_of_a_trial_start_with_it(gate: Gate, tmp_path: Path) -> None:
    stage = Stage(tmp_path, gate)
    assert stage.run() is Decision.KEPT
    assert stage.starts < 1.5


LITTLE = replace(ROOMY, peak_bytes=40 * GIB, reserved_bytes=40 * GIB, free_bytes=100 * GIB)


def test_the_last_runs_that_had_no_room_beside_the_trial_start_beside_its_gate(tmp_path: Path) -> None:
    stage = Stage(tmp_path, memory=LITTLE)
    assert stage.run() is Decision.KEPT
    in_turn = stage.machine.spent_ns["gates"] / NS_PER_S
    assert stage.starts < 1.5, table(stage.machine)
    assert in_turn < 1.5 * stage.machine.start_s, table(stage.machine)


@pytest.mark.parametrize(
    "more",
    [{"memory": Memory()}, {"ranks": 2}, {"cores": 4}],
    ids=["unknown memory", "several ranks", "few cores"],
)
def test_without_room_everything_starts_when_it_is_its_turn(more: dict[str, object], tmp_path: Path) -> None:
    stage = Stage(tmp_path, **more)  # type: ignore[arg-type]
    assert stage.run() is Decision.KEPT
    assert stage.starts > 2


def test_the_program_as_found_starts_while_it_is_decided_what_to_try(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with simulated(stage.machine), Bench(stage.program, tmp_path / "trials", Schedule(), Deadline()) as bench:
        bench.prepare(bench.copy({}, "original"))
        assert stage.machine.started.total() == 1
    assert stage.machine.alive == 0


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
class Wakes(Starting):
    """An arm that does not bear its rest, unless it is the second of its program."""

    trouble: Trouble = Trouble.CRASHED
    steps: int | None = None
    made: int = 0

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        if self.made == 0:
            raise ArmFailed(self.trouble, "the connection is gone", self.steps)
        return super().run(steps, drop, limit_ns)


def woken(trouble: Trouble, steps: int | None = None) -> tuple[Block | None, Clock, int]:
    clock, made = Clock(), 0

    def make(_program: Program, _name: str) -> ArmProtocol:
        nonlocal made
        made += 1
        return Wakes(clock, 10, trouble=trouble, steps=steps, made=made - 1)

    ahead = Ahead(make, lambda: clock.now_ns)
    ahead.start(Turn.LAST_RUN, ONE, 1.0)
    clock.now_ns = 10 * NS_PER_S
    ahead.rest()
    arm = ahead.take(Turn.LAST_RUN, ONE.root)
    assert arm is not None
    with contextlib.closing(arm), contextlib.suppress(ArmFailed):
        return arm.run(10, 2, NS_PER_S), clock, made
    return None, clock, made


@pytest.mark.parametrize(("trouble", "steps"), [(Trouble.CRASHED, None), (Trouble.ENDED, 5), (Trouble.ENDED, None)])
def test_a_program_that_does_not_bear_its_rest_starts_anew(trouble: Trouble, steps: int | None) -> None:
    block, clock, made = woken(trouble, steps)
    assert block is not None
    assert (made, clock.alive) == (2, 0)


@pytest.mark.parametrize(
    ("trouble", "steps"), [(Trouble.OUT_OF_MEMORY, None), (Trouble.HUNG, None), (Trouble.ENDED, 9)]
)
def test_what_has_nothing_to_do_with_its_rest_is_told(trouble: Trouble, steps: int | None) -> None:
    block, clock, made = woken(trouble, steps)
    assert block is None
    assert (made, clock.alive) == (1, 0)


def test_nothing_that_starts_early_is_waited_for_longer_than_there_is_time() -> None:
    clock = Clock()
    ahead, _ = waiting(clock, one=14)
    clock.now_ns = 10 * NS_PER_S
    ahead.rest(NS_PER_S)
    assert clock.now_ns == 11 * NS_PER_S
    assert clock.alive == 0


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
    ahead, _ = waiting(Clock(), one=1)
    keeper = Gatekeeper(cast("Workplace", None), 1, memory=ROOMY)
    told: list[str] = []
    beside = Prelaunch(ahead, keeper, 2, on_phase=lambda phase, _detail: told.append(phase))
    assert beside.clear()
    assert not beside.clear()
    assert told == ["memory ran out beside what had started early"]
    assert beside.closed
    beside.start([], UpcomingWork(last=(ONE,)))
    assert ahead.shares == []
