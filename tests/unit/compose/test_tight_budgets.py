"""What a tight budget is spent on, of programs whose starts, steps and noise are as they were once recorded.

The composer, the bench and the statistics are the real ones; processes and their clock are simulated, see
simulated_trials.py. What each fix saves, and what compiling takes that no recording has seen, are assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from composing import finding, fixer, replacing
from simulated_trials import GIB, Machine, composed, simulated, table

from diagnose import verdict
from diagnose.compose import Outcome
from diagnose.compose.proposals.candidates import Candidate, Review
from diagnose.compose.search import greedy_search
from diagnose.compose.search.budget import UNSPENT
from diagnose.fixer import Fixer
from diagnose.model import Accounting, Decision, Diagnosis, Gate, Steps
from diagnose.program import Program
from diagnose.session import AnyEvent, PhaseChanged
from diagnose.trial.bench import Bench
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.what_if import StepWithout


@dataclass(frozen=True)
class Cure:
    """A fix of a line of its own: what it is predicted to take off the step, and what it does."""

    name: str
    predicted_ms: float
    ms: float
    gate: Gate = Gate.BITWISE
    order: int = 30
    compile_s: float = 0.0
    later: bool = False
    """It comes to light once another is kept."""

    def fixer(self, line: str) -> Fixer:
        rewrite = replacing(f"{line} = 'slow'", f"{line} = 'fast'{'  # compile()' if self.compile_s else ''}")
        return fixer(self.name, rewrite, self.gate, order=self.order)


@dataclass(frozen=True)
class Case:
    """A recorded program."""

    watched_s: float
    """Until it was diagnosed."""
    start_s: float
    step_ms: float
    noise: float
    """Of a step, as a share of it; of a block, by the root of its steps less."""
    cures: Sequence[Cure]
    compile_s: float = 0.0
    """Of the program itself, at every start."""
    trace_s: float = 0.5


@dataclass
class Session:
    """One `diagnose fix` of it."""

    folder: Path
    case: Case
    events: list[AnyEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        self.lines = {one.name: f"part{at}" for at, one in enumerate(case.cures)}
        text = "import torch\n" + "".join(f"{line} = 'slow'\n" for line in self.lines.values())
        (self.folder / "train.py").write_text(text)
        self.machine = Machine(
            self._step_ms,
            start_s=case.start_s + case.compile_s,
            compile_s=self._compile_s,
            peak_gib=lambda _text: 4.0,
            trace_s=case.trace_s,
            noise=case.noise,
            luck=0.002,
        )

    def _has(self, one: Cure, text: str) -> bool:
        return f"{self.lines[one.name]} = 'fast'" in text

    def _step_ms(self, text: str) -> float:
        return self.case.step_ms - sum(one.ms for one in self.case.cures if self._has(one, text))

    def _compile_s(self, text: str) -> float:
        return max((one.compile_s for one in self.case.cures if self._has(one, text)), default=0.0)

    def run(self, budget_s: float) -> Outcome:
        case, program = self.case, Program.parse(["train.py"], cwd=self.folder)
        fixers = {one.name: one.fixer(self.lines[one.name]) for one in case.cures}
        found = {
            one: replace(
                finding(f"rule-{one.name}", 1, one.name, line=1),
                recoverable_ns=round(one.predicted_ms * NS_PER_MS),
                share=one.predicted_ms / case.step_ms,
            )
            for one in case.cures
        }
        later = tuple(Candidate(found[one], fixers[one.name]) for one in case.cures if one.later)
        findings = tuple(found[one] for one in case.cures if not one.later)
        diagnosis = Diagnosis(1, (), 1, None, Steps(4, round(case.step_ms * NS_PER_MS)), Accounting(), findings)
        deadline = Deadline.within(round((budget_s - case.watched_s) * NS_PER_S), self.machine.clock)
        memory = Memory(4 * GIB, 4 * GIB, 136 * GIB, 140 * GIB, 1 << 20)
        plan, compiles, window_ns = Schedule(), case.compile_s > 0, round(case.trace_s * NS_PER_S)
        start_ns = round((case.start_s + case.compile_s) * NS_PER_S)
        with (
            pytest.MonkeyPatch.context() as patched,
            simulated(self.machine),
            Bench(
                program,
                self.folder / "trials",
                plan,
                deadline,
                WatchedProgram(memory, window_ns, start_ns, round(case.step_ms * NS_PER_MS), compiles=compiles),
            ) as bench,
        ):
            patched.setattr(greedy_search, "review", lambda queue, *_: Review((*queue, *later)))
            return composed(bench, program, diagnosis, fixers, plan, deadline, self.events.append)


@pytest.fixture(autouse=True)
def findings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is asked for by each window again; fewer resamples than of a real trial are enough here."""
    monkeypatch.setattr(verdict, "RESAMPLES", 400)
    monkeypatch.setattr(greedy_search, "step_without", lambda *_: StepWithout())


ROUNDS = Gate.ROUNDING
CASES = {
    "many launches": Case(23.1, 6.0, 52, 0.6, (Cure("cuda-graphs", 26.5, 25, ROUNDS, 90, 2),)),
    "code that compiles anew": Case(25.4, 9.0, 224, 0.6, (Cure("mark-dynamic", 173, 190, ROUNDS, 60, 3),), 1),
    "a tokenizer": Case(12.0, 15.0, 90, 1.5, (Cure("workers", 40, 34), Cure("prefetch", 24, 16))),
    "a decoder": Case(8.3, 18.0, 53.5, 0.3, (Cure("workers", 36, 26),)),
    "augmented at random": Case(
        15.0,
        18.0,
        67.6,
        0.6,
        (Cure("workers", 41, 48, Gate.TRAINING), Cure("persistent-workers", 0.5, 0, Gate.TRAINING, 31)),
    ),
    "a loss": Case(
        8.5,
        5.7,
        30.7,
        0.02,
        (
            Cure("native-norm", 9.6, 0.05, ROUNDS, 50),
            Cure("compile-model", 9.5, 8, ROUNDS, 60, 12),
        ),
    ),
    "matrix units": Case(
        7.5,
        10.0,
        102,
        0.004,
        (Cure("bf16", 83, 88, Gate.TRAINING, 40), Cure("compile-model", 2, 2, ROUNDS, 60, 15, later=True)),
    ),
    "waits in a mask": Case(
        12.5,
        9.0,
        36.1,
        0.25,
        (Cure("weigh-masked", 11.5, 13.5, ROUNDS, 20), Cure("compile-model", 4, 5, ROUNDS, 60, 12, later=True)),
    ),
}


def kept(outcome: Outcome) -> set[str]:
    return {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT}


KEPT = {
    95: {
        "many launches": {"cuda-graphs"},
        "code that compiles anew": {"mark-dynamic"},
        "a decoder": {"workers"},
        "augmented at random": {"workers", "persistent-workers"},
        "a loss": {"compile-model"},
        "matrix units": {"bf16"},
        "waits in a mask": {"weigh-masked", "compile-model"},
    },
    180: {
        "many launches": {"cuda-graphs"},
        "code that compiles anew": {"mark-dynamic"},
        "a decoder": {"workers"},
        "a loss": {"compile-model"},
        "matrix units": {"bf16", "compile-model"},
        "waits in a mask": {"weigh-masked", "compile-model"},
    },
}


@pytest.mark.parametrize(("budget_s", "name"), [(budget, name) for budget in KEPT for name in KEPT[budget]])
def test_what_a_budget_is_enough_for(budget_s: int, name: str, tmp_path: Path) -> None:
    session = Session(tmp_path, CASES[name])
    outcome = session.run(budget_s)
    assert kept(outcome) == KEPT[budget_s][name], table(session.machine)
    assert outcome.final is not None
    assert session.machine.now_ns / NS_PER_S <= budget_s - CASES[name].watched_s + 1, table(session.machine)
    assert session.machine.alive == 0


def test_noise_is_no_saving_and_is_told_within_the_budget(tmp_path: Path) -> None:
    noisy = CASES["a tokenizer"]
    session = Session(tmp_path, replace(noisy, cures=tuple(replace(one, ms=0) for one in noisy.cures)))
    outcome = session.run(95)
    assert kept(outcome) == set()
    assert all(one.decision in {Decision.NO_CHANGE, Decision.SLOWER, Decision.NOT_TRIED} for one in outcome.verdicts)
    assert session.machine.now_ns / NS_PER_S <= 95 - session.case.watched_s + 1


def test_a_trial_that_may_be_cut_short_is_told_before_it_begins(tmp_path: Path) -> None:
    session = Session(tmp_path, CASES["a loss"])
    session.run(60)
    (told,) = [one for one in session.events if isinstance(one, PhaseChanged) and "cut short" in one.phase]
    assert told.phase == "trying compile-model although it may be cut short"
    assert "this would take about" in told.detail


def test_many_at_once_may_be_cut_short_too_where_none_of_them_fits_alone(tmp_path: Path) -> None:
    session = Session(tmp_path, CASES["augmented at random"])
    session.run(95)
    (told,) = [one for one in session.events if isinstance(one, PhaseChanged) and "cut short" in one.phase]
    assert told.phase == "trying all together although it may be cut short"


def test_one_that_is_cut_short_after_all_is_not_tried_and_the_budget_holds(tmp_path: Path) -> None:
    """Compiling takes much longer than was hoped."""
    case = CASES["a loss"]
    slow = replace(case, cures=(*case.cures[:1], replace(case.cures[1], compile_s=60)))
    session = Session(tmp_path, slow)
    outcome = session.run(95)
    told = {one.fixer: one for one in outcome.verdicts}["compile-model"]
    assert told.decision is Decision.NOT_TRIED
    assert told.summary == "the budget left no time to end its trial"
    assert session.machine.now_ns / NS_PER_S <= 95 - case.watched_s + 1
    assert session.machine.alive == 0


@pytest.mark.parametrize("budget_s", [60, 80, 110, 150, 200, 300])
@pytest.mark.parametrize("name", CASES)
def test_no_budget_is_given_up_with_a_third_of_it_left_while_a_tenth_of_the_step_is_promised(
    name: str, budget_s: int, tmp_path: Path
) -> None:
    case = CASES[name]
    session = Session(tmp_path, case)
    outcome = session.run(budget_s)
    for one in outcome.verdicts:
        if one.decision is Decision.NOT_TRIED and "the budget" in one.summary:
            large = (one.predicted_ns or 0) >= 0.1 * case.step_ms * NS_PER_MS
            left_s = budget_s - case.watched_s - session.machine.now_ns / NS_PER_S
            assert not large or UNSPENT * left_s < budget_s, table(session.machine)
    assert session.machine.now_ns / NS_PER_S <= budget_s - case.watched_s + 5, table(session.machine)


def test_nothing_begins_that_would_end_before_its_first_pair(tmp_path: Path) -> None:
    case = CASES["matrix units"]
    session = Session(tmp_path, case)
    outcome = session.run(case.watched_s + 0.117)
    assert session.machine.steps.total() == 0
    assert {one.decision for one in outcome.verdicts} == {Decision.NOT_TRIED}
