"""Two minutes for a small program: simulated, with starts of twelve seconds (see simulated_trials.py).

What an expert would change in such a program is one to three things; none of them may be left out for lack of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from composing import finding, fixer, replacing
from simulated_trials import GIB, Machine, composed, simulated, table

from diagnose import verdict
from diagnose.compose import Outcome
from diagnose.compose.proposals.candidates import Review
from diagnose.compose.search import greedy_search
from diagnose.fixer import Fixer
from diagnose.model import Accounting, Decision, Diagnosis, Gate, Steps
from diagnose.program import Program
from diagnose.trial.bench import Bench
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.what_if import StepWithout

WATCHED_S = 24.0
"""Of the budget, until the program was diagnosed."""


@dataclass(frozen=True)
class Cure:
    """A fix of a line of its own, and what it takes off the step."""

    name: str
    ms: float
    gate: Gate = Gate.BITWISE
    rounds_to: str | None = None

    def fixer(self, line: str) -> Fixer:
        return fixer(self.name, replacing(f"{line} = 'slow'", f"{line} = 'fast'"), self.gate, rounds_to=self.rounds_to)


@dataclass
class Small:
    """A program with an ailment a line, on a device with room for many of it."""

    folder: Path
    step_ms: float
    cures: Sequence[Cure]

    def __post_init__(self) -> None:
        self.lines = {one.name: f"part{at}" for at, one in enumerate(self.cures)}
        text = "import torch\n" + "".join(f"{line} = 'slow'\n" for line in self.lines.values())
        (self.folder / "train.py").write_text(text)
        self.machine = Machine(self._takes_ms, start_s=12.0, peak_gib=lambda _text: 4.0)

    def _takes_ms(self, text: str) -> float:
        return self.step_ms - sum(one.ms for one in self.cures if f"{self.lines[one.name]} = 'fast'" in text)

    def run(self, budget_s: float) -> Outcome:
        program = Program.parse(["train.py"], cwd=self.folder)
        fixers = {one.name: one.fixer(self.lines[one.name]) for one in self.cures}
        findings = tuple(
            replace(
                finding(f"rule-{one.name}", 1, one.name, line=1),
                recoverable_ns=round(one.ms * NS_PER_MS),
                share=one.ms / self.step_ms,
            )
            for one in self.cures
        )
        steps = Steps(4, round(self.step_ms * NS_PER_MS))
        diagnosis = Diagnosis(1, (), 1, None, steps, Accounting(), findings)
        deadline = Deadline.within(round((budget_s - WATCHED_S) * NS_PER_S), self.machine.clock)
        memory = Memory(4 * GIB, 4 * GIB, 136 * GIB, 140 * GIB, 1 << 20)
        schedule, step_ns = Schedule(), round(self.step_ms * NS_PER_MS)
        with (
            simulated(self.machine),
            Bench(
                program,
                self.folder / "trials",
                schedule,
                deadline,
                WatchedProgram(memory, start_ns=12 * NS_PER_S, step_ns=step_ns),
            ) as bench,
        ):
            return composed(bench, program, diagnosis, fixers, schedule, deadline)


@pytest.fixture(autouse=True)
def findings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is asked for by each window again; fewer resamples than of a real trial are enough here."""
    monkeypatch.setattr(verdict, "RESAMPLES", 400)
    monkeypatch.setattr(greedy_search, "review", lambda queue, *_: Review(tuple(queue)))
    monkeypatch.setattr(greedy_search, "step_without", lambda *_: StepWithout())


PROGRAMS = {
    "a loader": (Cure("workers", 12),),
    "fused kernels": (Cure("native", 8, Gate.ROUNDING),),
    "matrix units, in two steps": (
        Cure("tf32", 10, Gate.ROUNDING, "tf32"),
        Cure("bf16", 4, Gate.TRAINING, "bf16"),
    ),
    "copies and a loader": (Cure("workers", 9), Cure("pin", 2), Cure("nonblocking", 2)),
    "a loop of many parts": (Cure("item", 6), Cure("optimizer", 4, Gate.ROUNDING), Cure("norm", 2, Gate.ROUNDING)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_minutes_are_enough_for_all_that_an_expert_does(name: str, tmp_path: Path) -> None:
    small = Small(tmp_path, 20.0, PROGRAMS[name])
    outcome = small.run(120)
    kept = {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT}
    assert kept == {one.name for one in PROGRAMS[name]}, table(small.machine)
    assert outcome.final is not None
    best_ms = 20.0 - sum(one.ms for one in PROGRAMS[name])
    assert outcome.final.patched_ns <= best_ms * NS_PER_MS / 0.95
    assert small.machine.now_ns / NS_PER_S < 120 - WATCHED_S, table(small.machine)
    assert small.machine.alive == 0


@pytest.mark.parametrize("name", ["a loader", "matrix units, in two steps", "a loop of many parts"])
def test_what_starts_early_makes_a_minute_and_a_half_enough(name: str, tmp_path: Path) -> None:
    """One start is waited for in place of four: of the control, the trial, its gate and the last runs."""
    small = Small(tmp_path, 20.0, PROGRAMS[name])
    outcome = small.run(95)
    kept = {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT}
    assert kept == {one.name for one in PROGRAMS[name]}, table(small.machine)
    assert outcome.final is not None
    assert small.machine.now_ns / NS_PER_S < 95 - WATCHED_S, table(small.machine)
    assert small.machine.alive == 0


def tried_at_once(outcome: Outcome) -> set[str]:
    return {one.fixer for one in outcome.verdicts if "at once" in one.summary}


def test_two_go_together_only_where_time_is_short(tmp_path: Path) -> None:
    two = PROGRAMS["matrix units, in two steps"]
    short, long = tmp_path / "short", tmp_path / "long"
    for folder in (short, long):
        folder.mkdir()
    assert tried_at_once(Small(short, 20.0, two).run(85)) == {"tf32", "bf16"}
    outcome = Small(long, 20.0, two).run(300)
    assert tried_at_once(outcome) == set()
    assert {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT} == {"tf32", "bf16"}


def test_a_small_promise_is_tried_where_only_the_last_run_has_no_time(tmp_path: Path) -> None:
    small = Small(tmp_path, 400.0, (Cure("optimizer", 16),))
    (said,) = small.run(96).verdicts
    assert said.decision is not Decision.NOT_TRIED, table(small.machine)
    assert small.machine.now_ns / NS_PER_S < 96, table(small.machine)
