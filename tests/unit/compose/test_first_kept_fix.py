"""How soon a large saving is kept, and what a short budget is enough for: simulated, with recorded starts and memory.

The composer, the bench and the statistics are the real ones; processes, gates and whole runs pass on a clock that
nobody waits for, see simulated_trials.py. Two processes of these programs fill a device, so that nothing more starts
beside a trial.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from composing import finding, fixer
from simulated_trials import GIB, Machine, composed, simulated, table

from diagnose import verdict
from diagnose.compose import Outcome
from diagnose.compose.proposals.candidates import Review
from diagnose.compose.search import greedy_search
from diagnose.fixer import Edits, Request
from diagnose.model import Accounting, Decision, Diagnosis, Gate, Steps
from diagnose.program import Program
from diagnose.session import AnyEvent, VerdictReached
from diagnose.trial.bench import Bench
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.what_if import StepWithout

WATCHED_S = 35.0
"""Of the budget, until fixers were asked."""


@dataclass
class Session:
    """One `diagnose fix` of a program with one large ailment."""

    folder: Path
    step_ms: float
    saves: float
    start_s: float = 20.0
    gate: Gate = Gate.BITWISE
    promises: float = 0.0
    settings: int = 1
    """Of the fix, each faster by a tenth than the one before."""
    kept_ns: int | None = None
    """When the first fix was shown as kept, since fixers were asked."""
    machine: Machine = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text("part = 'slow'\n")

        def step_ms(text: str) -> float:
            number = re.search(r"'fast(\d)'", text)
            return self.step_ms * (1 - self.saves) * 0.9 ** int(number[1]) if number else self.step_ms

        self.machine = Machine(step_ms, start_s=self.start_s, peak_gib=lambda _text: 39.0, trace_s=2.0)

    def tell(self, event: AnyEvent) -> None:
        if self.kept_ns is None and isinstance(event, VerdictReached) and event.verdict.decision is Decision.KEPT:
            self.kept_ns = self.machine.now_ns

    def run(self, budget_s: float) -> Outcome:
        program = Program.parse(["train.py"], cwd=self.folder)
        fixers = {"fix": fixer("fix", faster, self.gate, settings=lambda _: [{"n": n} for n in range(self.settings)])}
        promised = self.promises or self.saves
        step_ns = round(self.step_ms * NS_PER_MS)
        found = replace(finding("rule", 1, "fix", line=1), recoverable_ns=round(promised * step_ns), share=promised)
        diagnosis = Diagnosis(1, (), 1, None, Steps(4, step_ns), Accounting(), (found,))
        deadline = Deadline.within(round((budget_s - WATCHED_S) * NS_PER_S), self.machine.clock)
        memory, plan = Memory(39 * GIB, 39 * GIB, 101 * GIB, 140 * GIB, 1 << 20), Schedule()
        start_ns = round(self.start_s * NS_PER_S)
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
            return composed(bench, program, diagnosis, fixers, plan, deadline, self.tell)

    @property
    def kept_s(self) -> float:
        assert self.kept_ns is not None, table(self.machine)
        return self.kept_ns / NS_PER_S


def faster(request: Request) -> Edits:
    ((path, text),) = request.sources.items()
    return Edits({path: text.replace("'slow'", f"'fast{request.setting['n']}'")}, "")


@pytest.fixture(autouse=True)
def findings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "RESAMPLES", 400)
    monkeypatch.setattr(greedy_search, "review", lambda queue, *_: Review(tuple(queue)))
    monkeypatch.setattr(greedy_search, "step_without", lambda *_: StepWithout())


@pytest.mark.parametrize(("step_ms", "saves"), [(400, 0.57), (320, 0.2), (100, 0.57)])
def test_a_large_saving_is_kept_after_two_starts(step_ms: float, saves: float, tmp_path: Path) -> None:
    """Those of the arms, and those of the captures of its gate, which do not fit beside them."""
    session = Session(tmp_path, step_ms, saves)
    session.run(600)
    steps_s = 80 * step_ms / 1000
    assert session.kept_s < 2 * session.start_s + 2 * session.machine.trace_s + steps_s, table(session.machine)
    assert session.kept_s < 70


def test_a_choice_of_settings_waits_until_the_first_is_kept(tmp_path: Path) -> None:
    for folder in ("one", "four"):
        (tmp_path / folder).mkdir()
    alone, choosing = Session(tmp_path / "one", 320, 0.57), Session(tmp_path / "four", 320, 0.57, settings=4)
    alone.run(600)
    (verdict,) = choosing.run(600).verdicts
    assert choosing.kept_s == pytest.approx(alone.kept_s)
    assert verdict.setting == {"n": 3}, table(choosing.machine)


def test_what_saves_a_tenth_takes_another_generation(tmp_path: Path) -> None:
    session = Session(tmp_path, 400, 0.11, start_s=10)
    session.run(600)
    assert session.kept_s < 60, table(session.machine)


def test_starts_of_ten_seconds_keep_half_a_step_within_half_a_minute(tmp_path: Path) -> None:
    session = Session(tmp_path, 100, 0.57, start_s=10)
    session.run(600)
    assert session.kept_s < 35, table(session.machine)


@pytest.mark.parametrize("budget_s", [60, 80, 100, 130, 170, 265])
@pytest.mark.parametrize("promises", [0.0, 0.11])
def test_the_best_fix_is_tried_under_any_budget_and_no_budget_is_exceeded(
    budget_s: int, promises: float, tmp_path: Path
) -> None:
    session = Session(tmp_path, 385, 0.57, promises=promises)
    outcome = session.run(budget_s)
    assert session.machine.started["trials"] >= 2, table(session.machine)
    assert session.machine.now_ns / NS_PER_S <= budget_s - WATCHED_S + 1, table(session.machine)
    (verdict,) = outcome.verdicts
    assert verdict.decision is (Decision.KEPT if budget_s >= 110 else verdict.decision), table(session.machine)
    assert (outcome.patch is not None) is (verdict.decision is Decision.KEPT)
    assert session.machine.alive == 0
