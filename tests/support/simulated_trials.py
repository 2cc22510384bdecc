"""A bench whose programs are simulated: composer, schedule, statistics and budget are the real ones, the clock is not.

A program is a text; what its step takes is looked up in it. Processes that start together warm up together, a step of
one keeps every other waiting, and all of it passes on a clock that nobody waits for. Times say what was assumed here,
and nothing of any machine.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from diagnose.compose import GreedySearch, Outcome
from diagnose.compose.stack.run_context import knowledge
from diagnose.fixer import Fixer
from diagnose.model import Diagnosis, Gate, Mechanism
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import AnyEvent
from diagnose.trace import Trace
from diagnose.trial import bench, decision, standalone, trial_runner
from diagnose.trial.gates import capture_runner
from diagnose.trial.gates.captures import Capture, Tensor
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.gates.trajectory import Curve
from diagnose.trial.planning import numerics_check
from diagnose.trial.process.arm import ArmFailed, Block, Ready, Trouble, Workplace
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.whole_run.gate import WholeRunGate
from diagnose.units import NS_PER_MS, NS_PER_S

GIB = 1 << 30


@dataclass
class Machine:
    """What is assumed of programs, and what was spent on them."""

    step_ms: Callable[[str], float]
    """Of a program with this text."""
    start_s: float = 12.0
    compile_s: Callable[[str], float] = lambda _text: 0.0
    """More, at the first start of a program with this text; a quarter of it at later ones."""
    peak_gib: Callable[[str], float] = lambda _text: 10.0
    device_gib: float = 140.0
    trace_s: float = 4.0
    """To write a window of the profiler."""
    noise: float = 0.003
    luck: float = 0.001
    """Of a process."""
    now_ns: int = 0
    started: Counter[str] = field(default_factory=Counter)
    """Processes by what they were for."""
    steps: Counter[str] = field(default_factory=Counter)
    """Steps by what they were for."""
    spent_ns: Counter[str] = field(default_factory=Counter)
    """Time by what it was spent on."""
    compiled: set[str] = field(default_factory=set)
    alive: int = 0

    def __post_init__(self) -> None:
        self.luck_of = np.random.default_rng(1)

    def clock(self) -> int:
        return self.now_ns

    def until(self, moment_ns: int, what: str) -> None:
        self.spent_ns[what] += max(0, moment_ns - self.now_ns)
        self.now_ns = max(self.now_ns, moment_ns)

    def walk(self, step_ns: float, steps: int, what: str) -> None:
        self.steps[what] += steps
        self.until(self.now_ns + round(step_ns * steps), what)

    def begin(self, text: str, what: str) -> int:
        """A process starts; the moment at which it takes its first step."""
        self.started[what] += 1
        again = 0.25 if text in self.compiled else 1.0
        self.compiled.add(text)
        return self.now_ns + round(NS_PER_S * (self.start_s + again * self.compile_s(text)))

    def memory(self, text: str) -> Memory:
        held = round(self.peak_gib(text) * GIB)
        return Memory(held, held, round(self.device_gib * GIB) - held, round(self.device_gib * GIB), 1 << 20)


class SimulatedArm:
    """Takes its steps on the clock of the machine."""

    def __init__(self, machine: Machine, program: Program, name: str, warmup_steps: int) -> None:
        self._machine = machine
        self._text = text_of(program)
        self._what = _purpose(name)
        luck = 1 + machine.luck * machine.luck_of.standard_normal()
        self._step_ns = machine.step_ms(self._text) * NS_PER_MS * luck
        self._began_ns = machine.now_ns
        self._first_step_ns = machine.begin(self._text, self._what)
        self._warmup = Schedule(warmup_steps=warmup_steps).warm_up(round(self._step_ns))
        machine.alive += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self, limit_ns: int) -> Ready:
        assert limit_ns > 0
        end_ns = self._began_ns + limit_ns
        if self._first_step_ns + self._warmup * self._step_ns > end_ns:
            self._machine.until(end_ns, f"{self._what}: starts")
            raise ArmFailed(Trouble.HUNG, "no answer in time")
        self._machine.until(self._first_step_ns, f"{self._what}: starts")
        self._machine.walk(self._step_ns, self._warmup, f"{self._what}: starts")
        took_ns = self._machine.now_ns - self._began_ns
        return Ready(self._warmup, round(self._step_ns), self._machine.memory(self._text), took_ns)

    def run(self, steps: int, drop: int, limit_ns: int) -> Block:
        assert limit_ns > 0
        if (steps + drop) * self._step_ns > limit_ns:
            self._machine.until(self._machine.now_ns + limit_ns, f"{self._what}: blocks")
            raise ArmFailed(Trouble.HUNG, "no answer in time")
        self._machine.walk(self._step_ns, steps + drop, f"{self._what}: blocks")
        noise = np.exp(self._machine.noise * self._machine.luck_of.standard_normal() / np.sqrt(steps))
        return Block(steps, round(steps * self._step_ns * noise), 0, self._machine.memory(self._text))

    def trace(self, steps: int, drop: int, limit_ns: int) -> list[Path]:
        assert limit_ns > 0
        self._machine.walk(self._step_ns, steps + drop, f"{self._what}: windows")
        self._machine.until(self._machine.now_ns + round(self._machine.trace_s * NS_PER_S), f"{self._what}: windows")
        return [Path("window")]

    def close(self) -> None:
        self._machine.alive -= 1


@dataclass(frozen=True)
class SimulatedCapture:
    """A process of a gate: its numbers are those of every other."""

    machine: Machine
    first_step_ns: int
    step_ns: float

    exited = True
    """Whoever asks waits for it, on the machine's clock."""

    def ask_to_end(self) -> None:
        """It is gone already."""

    def give_way(self) -> None:
        """It takes no core."""

    def end(self) -> None:
        """It is gone already."""


def text_of(program: Program) -> str:
    assert program.entry is not None
    return program.entry.read_text()


def _purpose(name: str) -> str:
    """`3-allow-tf32-left-out-original` → what the process is for."""
    for word in ("control", "left-out", "sweep", "alone"):
        if word in name:
            return word
    return "trials"


@contextlib.contextmanager
def simulated(machine: Machine, cores: int = 16) -> Iterator[None]:
    """Within it, a Bench starts nothing: its processes are simulated."""

    def arm(_place: Workplace, program: Program, name: str, warmup_steps: int) -> SimulatedArm:
        return SimulatedArm(machine, program, name, warmup_steps)

    def begin(keeper: Gatekeeper, wanted: Any) -> tuple[Path, SimulatedCapture]:
        keeper.started += 1
        text = text_of(wanted.program)
        what = "trajectories" if wanted.of_luck else "gates"
        step_ns = machine.step_ms(text) * NS_PER_MS * (4 if "precision" in wanted.recipe else 1)
        return Path(), SimulatedCapture(machine, machine.begin(text, what), step_ns)

    def finish(keeper: Gatekeeper, wanted: Any, _folder: Path, capture: SimulatedCapture) -> Capture | Curve | str:
        what = "trajectories" if wanted.of_luck else "gates"
        ends_ns = max(machine.now_ns, capture.first_step_ns) + capture.step_ns * wanted.recipe["steps"]
        if keeper.deadline.at_ns is not None and ends_ns > keeper.deadline.at_ns:
            machine.until(keeper.deadline.at_ns, what)
            return "the budget left no time to end it"
        machine.until(capture.first_step_ns, what)
        machine.walk(capture.step_ns, wanted.recipe["steps"], what)
        if wanted.of_luck:
            rng = np.random.default_rng(wanted.recipe["seed"])
            return Curve(3 + 0.1 * rng.standard_normal(wanted.recipe["steps"]))
        tensors = [Tensor(0, kind, kind, (1,), True, "same", 1) for kind in ("loss", "gradient")]
        values = {(0, *tensor.key): np.ones(1) for tensor in tensors}
        return Capture({(0, *tensor.key): tensor for tensor in tensors}, values)

    def first(_keeper: Gatekeeper, running: Any, _end_ns: int) -> Any:
        return min(running, key=lambda one: one.group.first_step_ns)

    def stands(_keeper: Gatekeeper, one: Any, _end_ns: int) -> bool:
        machine.until(one.group.first_step_ns, "gates")
        machine.walk(one.group.step_ns, 1, "gates")
        return True

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Gatekeeper, "_first_to_end", first)
        patched.setattr(Gatekeeper, "_stands", stands)
        for name in ("_ask_to_stand", "_stop", "_let_go_on"):
            patched.setattr(Gatekeeper, name, lambda _keeper, _one: None)
        for module in (trial_runner, standalone):
            patched.setattr(module, "Arm", arm)
        patched.setattr(decision, "mechanism", lambda measure, _found: Mechanism(measure, 2, 1, "ns", True))
        for module in (trial_runner, numerics_check, capture_runner):
            patched.setattr(module, "time", types.SimpleNamespace(monotonic_ns=machine.clock))
        patched.setattr(Gatekeeper, "_start", begin)
        patched.setattr(Gatekeeper, "_finish", finish)
        patched.setattr(WholeRunGate, "check", lambda *_asked, **_how: ())
        patched.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
        yield


def table(machine: Machine) -> str:
    """Where the time went."""
    rows: Mapping[str, int] = machine.spent_ns
    return "\n".join(f"{rows[what] / NS_PER_S:8.1f} s  {what}" for what in sorted(rows, key=lambda what: -rows[what]))


def composed(
    trials: bench.Bench,
    program: Program,
    diagnosis: Diagnosis,
    fixers: Mapping[str, Fixer],
    schedule: Schedule,
    deadline: Deadline,
    tell: Callable[[AnyEvent], None] = lambda _event: None,
) -> Outcome:
    """What comes of trying these fixers on a simulated bench, with every gate allowed."""
    known = knowledge(program, diagnosis, [Trace("run")])
    catalogue = Catalogue({}, dict(fixers))
    return GreedySearch(program, diagnosis, known, catalogue, tell, trials, schedule, deadline, frozenset(Gate)).run()
