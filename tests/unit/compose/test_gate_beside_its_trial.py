"""How soon after its pairs a fix that changes the training has its verdict: simulated, see simulated_trials.py.

The composer, the bench and the statistics are the real ones; processes and their clock are simulated. The program is a
vision transformer of which five processes fit on the device, with its own switch to half precision; its starts, its
steps and the 45 seconds before its first trial are as they were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from composing import finding, fixer, replacing
from simulated_trials import GIB, Machine, composed, simulated, table

from diagnose import verdict
from diagnose.compose import Outcome
from diagnose.compose.proposals.candidates import Review
from diagnose.compose.search import greedy_search
from diagnose.model import Accounting, Decision, Diagnosis, Gate, Steps
from diagnose.program import Program
from diagnose.session import AnyEvent, VerdictReached
from diagnose.trial.bench import Bench
from diagnose.trial.gates.trajectory import LEAST_SEEDS, LEAST_STEPS
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.what_if import StepWithout

WATCHED_S = 45.0
"""Of the budget, until the first trial."""
START_S = 15.0
STEP_MS, PATCHED_MS = 113.0, 58.0
DEVICE_GIB = 140


@dataclass
class Session:
    """One `diagnose fix` with one large ailment."""

    folder: Path
    gate: Gate = Gate.TRAINING
    held_gib: int = 24
    """By one process, of the device."""
    busy_cores: float = 4.0
    """Of 16, by one process with its workers."""
    promises: float = 0.49
    compile_s: float = 0.0
    """Of the patched program, at its first start."""
    began: list[tuple[float, str]] = field(default_factory=list)
    """Seconds at which processes began, and for what."""
    kept_s: float | None = None

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text("part = 'slow'\n")
        self.machine = Machine(
            lambda text: STEP_MS if "'slow'" in text else PATCHED_MS,
            start_s=START_S,
            compile_s=lambda text: 0.0 if "'slow'" in text else self.compile_s,
            peak_gib=lambda _text: self.held_gib,
            device_gib=DEVICE_GIB,
            noise=0.01,
        )
        begin = self.machine.begin

        def noted(text: str, what: str) -> int:
            self.began.append((self.machine.now_ns / NS_PER_S, what))
            return begin(text, what)

        self.machine.begin = noted  # type: ignore[method-assign]

    def tell(self, event: AnyEvent) -> None:
        if self.kept_s is None and isinstance(event, VerdictReached) and event.verdict.decision is Decision.KEPT:
            self.kept_s = self.machine.now_ns / NS_PER_S

    def run(self, budget_s: float) -> Outcome:
        program = Program.parse(["train.py"], cwd=self.folder)
        to = "part = compile('fast')  # .compile()" if self.compile_s else "part = 'fast'"
        made = fixer("fix", replacing("part = 'slow'", to), self.gate, rounds_to="bf16")
        step_ns = round(STEP_MS * NS_PER_MS)
        promised_ns = round(self.promises * step_ns)
        found = replace(finding("rule", 1, "fix", line=1), recoverable_ns=promised_ns, share=self.promises)
        diagnosis = Diagnosis(1, (), 1, None, Steps(4, step_ns), Accounting(), (found,))
        deadline = Deadline.within(round((budget_s - WATCHED_S) * NS_PER_S), self.machine.clock)
        held, device = self.held_gib * GIB, DEVICE_GIB * GIB
        memory = Memory(held, held, device - held, device, 1 << 20, self.busy_cores)
        plan, start_ns = Schedule(), round(START_S * NS_PER_S)
        with (
            simulated(self.machine),
            Bench(
                program,
                self.folder / "trials",
                plan,
                deadline,
                WatchedProgram(memory, start_ns=start_ns, step_ns=step_ns),
            ) as bench,
        ):
            return composed(bench, program, diagnosis, {"fix": made}, plan, deadline, self.tell)

    def first(self, what: str) -> float:
        return min(second for second, purpose in self.began if purpose == what)


@pytest.fixture(autouse=True)
def findings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "RESAMPLES", 400)
    monkeypatch.setattr(greedy_search, "review", lambda queue, *_: Review(tuple(queue)))
    monkeypatch.setattr(greedy_search, "step_without", lambda *_: StepWithout())


@pytest.mark.parametrize(("held_gib", "busy_cores"), [(12, 4.0), (20, 4.0), (24, 4.0), (20, 11.0), (24, 11.0)])
def test_a_switch_that_halves_the_step_is_kept_within_the_budget_that_was_too_short(
    held_gib: int, busy_cores: float, tmp_path: Path
) -> None:
    session = Session(tmp_path, held_gib=held_gib, busy_cores=busy_cores)
    outcome = session.run(135)
    assert session.kept_s is not None, table(session.machine)
    assert session.kept_s <= 135 - WATCHED_S
    assert outcome.patch is not None
    assert session.machine.steps["trajectories"] == 2 * LEAST_SEEDS * LEAST_STEPS
    assert session.machine.now_ns / NS_PER_S <= 135 - WATCHED_S + 1, table(session.machine)
    assert session.machine.alive == 0


def test_the_gate_of_a_large_promise_goes_before_a_second_generation(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.run(300)
    assert session.machine.started["trials"] == 2, "two arms"
    assert session.first("gates") == 0.0


def test_what_promises_little_has_its_second_generation_beside_the_first(tmp_path: Path) -> None:
    session = Session(tmp_path, promises=0.12)
    session.run(300)
    assert [what for second, what in session.began if second == 0.0].count("trials") == 4


def test_what_is_compiled_for_the_gate_is_compiled_beside_the_arm_and_by_no_more_processes(tmp_path: Path) -> None:
    session = Session(tmp_path, Gate.ROUNDING, held_gib=12, compile_s=40)
    session.run(300)
    assert [what for second, what in session.began if second == 0.0 and what == "gates"] == ["gates"] * 4
    assert session.kept_s is not None, table(session.machine)
    assert session.kept_s < START_S + session.compile_s + 20


def test_trajectories_of_compiled_code_wait_until_an_arm_has_compiled_it(tmp_path: Path) -> None:
    session = Session(tmp_path, held_gib=12, compile_s=40)
    session.run(300)
    at_once = [what for second, what in session.began if second == 0.0]
    assert at_once.count("trajectories") <= LEAST_SEEDS
    assert session.machine.started["trajectories"] == 2 * LEAST_SEEDS
