"""Arms of a duel whose clocks are made up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.trial.ab.ab_trial import compare
from diagnose.trial.ab.result import ORIGINAL, PATCHED, Comparison
from diagnose.trial.ab.trial_state import ABTrial
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule

SCHEDULE = Schedule(pairs=8, generations=2, look_every=4)
SMALL = Memory(peak_bytes=100, host_bytes=1)


@dataclass
class Machine:
    """Writes down what happens on it; a step takes what `step_ns` says of a side."""

    step_ns: Callable[[int], float] = lambda side: 20e6 if side == ORIGINAL else 10e6
    lasts: float = float("inf")
    """Steps until a program comes to its own end."""
    memory: Memory = SMALL
    fails: dict[int, ArmFailed] = field(default_factory=dict)
    """The side that fails in its third block, and how."""
    hangs: Collection[int] = ()
    """Processes, counted from 0, that never get ready."""
    starts_ns: Sequence[int] = ()
    """How long each process takes to start, in the order of their starts."""
    diary: list[str] = field(default_factory=list)
    alive: int = 0

    def starter(self, side: int) -> Callable[[int], FakeArm]:
        return lambda number: FakeArm(self, side, number)

    def run(self, schedule: Schedule = SCHEDULE, **more: object) -> Comparison:
        duel = replace(ABTrial(schedule, Deadline(), fits=True), **more)  # type: ignore[arg-type]
        return compare(duel, self.starter(ORIGINAL), self.starter(PATCHED))


class FakeArm:
    def __init__(self, machine: Machine, side: int, number: int) -> None:
        self.machine, self.side, self.number = machine, side, number
        self.steps = self.blocks = 0
        machine.alive += 1
        machine.diary.append(f"start {'AB'[side]}")

    def ready(self, limit_ns: int) -> Ready:
        assert limit_ns > 0
        if self.number in self.machine.hangs:
            raise ArmFailed(Trouble.HUNG, "no answer in time")
        self.walk(5)
        self.machine.diary.append(f"ready {'AB'[self.side]}")
        start_ns = self.machine.starts_ns[self.number] if self.machine.starts_ns else 0
        return Ready(5, round(self.machine.step_ns(self.side)), self.machine.memory, start_ns)

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        assert limit_ns > 0
        self.walk(steps + drop)
        self.blocks += 1
        if self.blocks == 3 and self.side in self.machine.fails:
            raise self.machine.fails[self.side]
        self.machine.diary.append("AB"[self.side])
        return Block(steps, round(steps * self.machine.step_ns(self.side)), 7 * steps, self.machine.memory)

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        assert limit_ns > 0
        self.walk(steps + drop)
        self.machine.diary.append(f"trace {'AB'[self.side]}")
        return [Path(f"{self.side}-{self.number}")]

    def close(self) -> None:
        self.machine.alive -= 1

    def walk(self, steps: int) -> None:
        self.steps += steps
        if self.steps > self.machine.lasts:
            raise ArmFailed(Trouble.ENDED, "the program came to its end", self.steps)


def turns(diary: Sequence[str]) -> str:
    """The sides whose blocks ran, A or B, in order."""
    return "".join(entry for entry in diary if entry in "AB")
