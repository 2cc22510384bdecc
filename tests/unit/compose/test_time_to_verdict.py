"""What a budget is spent on, on simulated programs: times as they were once recorded of a naive GPT on one device.

The composer, the bench and the statistics are the real ones; only processes and their clock are made up (see
simulated_trials.py), so that starts, steps and seconds can be counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from composing import finding, fixer, replacing
from simulated_trials import GIB, Machine, composed, simulated, table

from diagnose import compose, verdict
from diagnose.compose import Outcome
from diagnose.compose.proposals.candidates import Candidate, Review
from diagnose.compose.search import greedy_search
from diagnose.fixer import Fixer
from diagnose.model import TOGETHER, Accounting, Confidence, Decision, Diagnosis, Finding, Gate, Steps
from diagnose.program import Program
from diagnose.session import AnyEvent, PatchAccepted
from diagnose.trial.ab.aa_control import ASSUMED, AAControl
from diagnose.trial.bench import Bench, Trial
from diagnose.trial.gates.trajectory import LEAST_SEEDS, LEAST_STEPS
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.process.capacity import Memory
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.watched_program import WatchedProgram
from diagnose.units import NS_PER_MS, NS_PER_S
from diagnose.verdict import LEAST_PAIRS, LEAST_SAVING
from diagnose.what_if import StepWithout

PARTS = {"matmul": 282.0, "attention": 44.0, "norm": 4.0, "pointwise": 9.0, "clip": 6.0, "read": 4.0, "optimizer": 3.0}
"""Of a step, in ms: what each fix takes out or makes smaller; the vocabulary comes to light later."""
SOURCE = "import torch\n" + "".join(f"{part} = 'slow'\n" for part in PARTS) + "vocabulary = 'odd'\nrest = 25\n"


def step_ms(text: str) -> float:
    """By the model of the recorded program: 385 ms as found, about 36 ms with everything."""
    whole = 25 + (8 if "vocabulary = 'odd'" in text else 0) + (3 if "optimizer = 'slow'" not in text else 0) / 2
    whole += sum(ms for part, ms in PARTS.items() if part != "matmul" and f"{part} = 'slow'" in text)
    matmul = PARTS["matmul"]
    if "'tf32'" in text:
        matmul = 75
    if "bf16" in text:
        matmul = 10
    return whole + matmul


def rewriting(name: str, part: str, to: str, gate: Gate = Gate.ROUNDING, **more: object) -> Fixer:
    return fixer(name, replacing(f"{part} = 'slow'", f"{part} = '{to}'"), gate, **more)


FIXERS = [
    rewriting("allow-tf32", "matmul", "tf32", rounds_to="tf32", order=40),
    fixer(
        "autocast-bf16", replacing("import torch", "import torch  # bf16"), Gate.TRAINING, rounds_to="bf16", order=40
    ),
    rewriting("use-sdpa", "attention", "fused"),
    rewriting("native-norm", "norm", "native"),
    rewriting("compile-model", "pointwise", "compile()", order=60),
    rewriting("foreach-clip", "clip", "foreach", order=20),
    rewriting("defer-item", "read", "deferred", Gate.BITWISE, order=20),
    rewriting("fused-optimizer", "optimizer", "fused"),
    fixer("pad-vocabulary", replacing("vocabulary = 'odd'", "vocabulary = 'even'"), Gate.ROUNDING),
    fixer("loader-workers", replacing("rest = 25", "rest = 25  # workers"), Gate.BITWISE, order=30),
    fixer("loader-pin", replacing("import torch", "import torch  # pin"), Gate.BITWISE, order=30),
]


def found(rule: str, milliseconds: float, *fixers: str) -> Finding:
    made = finding(rule, 1, *fixers)
    recoverable_ns = round(milliseconds * 1e6)
    return Finding(
        rule,
        made.severity,
        0,
        recoverable_ns,
        milliseconds / step_ms(SOURCE),
        made.confidence,
        rule,
        where=made.where,
        fixers=fixers,
    )


FINDINGS = (
    found("fp32-matmul", 250, "allow-tf32", "autocast-bf16"),
    found("unfused-attention", 44, "use-sdpa"),
    found("unfused-pointwise", 10.5, "native-norm", "compile-model"),
    found("host-sync", 10.4, "foreach-clip", "defer-item"),
    found("slow-optimizer", 3.1, "fused-optimizer"),
)
LATER = (
    found("fp32-matmul", 69, "autocast-bf16"),
    found("misaligned-vocabulary", 7.6, "pad-vocabulary"),
    found("input-bound", 0.9, "loader-workers", "loader-pin"),
)
"""What the window of the patched program shows."""
LEFT = (found("unfused-pointwise", 9, "compile-model"),)
"""What it shows besides, where nothing has treated it."""
BY_NAME = {one.name: one for one in FIXERS}


@dataclass
class Session:
    """One `diagnose fix` of the simulated program."""

    folder: Path
    budget_s: float
    machine: Machine = field(
        default_factory=lambda: Machine(
            step_ms,
            start_s=10.3,
            compile_s=lambda text: 19 if "compile()" in text else 0,
            peak_gib=lambda text: 37 if "attention = 'slow'" in text else 24,
        )
    )
    watched_s: float = 32.0
    """Until the program was diagnosed."""
    held_gib: int = 40
    """By the watched program, of its device's memory."""
    events: list[AnyEvent] = field(default_factory=list)

    def run(self, schedule: Schedule | None = None) -> Outcome:
        (self.folder / "train.py").write_text(SOURCE)
        program = Program.parse(["train.py"], cwd=self.folder)
        step_ns = round(step_ms(SOURCE) * 1e6)
        diagnosis = Diagnosis(1, (), 1, None, Steps(4, step_ns), Accounting(), FINDINGS)
        plan, left_ns = schedule or Schedule(), round((self.budget_s - self.watched_s) * NS_PER_S)
        deadline = Deadline.within(left_ns, self.machine.clock)
        held, device = self.held_gib * GIB, 140 * GIB
        memory = Memory(held, held, device - held, device, 1 << 20)
        start_ns = round(self.machine.start_s * NS_PER_S)
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
            return composed(bench, program, diagnosis, BY_NAME, plan, deadline, self.events.append)


def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found after each kept fix; fewer resamples than of a real trial, which is enough for these times."""
    monkeypatch.setattr(verdict, "RESAMPLES", 400)

    def look(queue: Sequence[Candidate], *_: object) -> Review:
        waits = [one for one in LEFT if any(waiting.finding.rule == one.rule for waiting in queue)]
        return Review(tuple(Candidate(one, BY_NAME[name]) for one in (*waits, *LATER) for name in one.fixers))

    monkeypatch.setattr(greedy_search, "review", look)


@pytest.fixture(scope="module")
def seven_minutes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Outcome]:
    with pytest.MonkeyPatch.context() as patched:
        windows(patched)
        session = Session(tmp_path_factory.mktemp("seven"), 420)
        return session, session.run()


def test_seven_minutes_are_enough_for_what_promises_most(seven_minutes: tuple[Session, Outcome]) -> None:
    session, outcome = seven_minutes
    kept = {one.fixer for one in outcome.verdicts if one.decision is Decision.KEPT}
    assert kept >= {one.name for one in FIXERS[:9]}, table(session.machine)
    assert outcome.final is not None
    assert outcome.final.original_ns / outcome.final.patched_ns > 10
    assert session.machine.alive == 0


def test_the_budget_is_kept(seven_minutes: tuple[Session, Outcome]) -> None:
    session, _ = seven_minutes
    assert session.machine.now_ns / NS_PER_S < session.budget_s - session.watched_s, table(session.machine)


def test_the_slow_original_takes_no_trajectory(seven_minutes: tuple[Session, Outcome]) -> None:
    session, _ = seven_minutes
    # Of what keeps the numbers, of what changes the training beside it, and of what a later fix has added to that.
    assert session.machine.steps["trajectories"] == 3 * LEAST_SEEDS * LEAST_STEPS
    # Under every seed, as many steps of the original alone would take longer than each of the three, with its start.
    assert session.machine.spent_ns["trajectories"] / 3 < LEAST_SEEDS * LEAST_STEPS * step_ms(SOURCE) * NS_PER_MS


def test_nothing_is_measured_of_the_machine_where_no_verdict_hangs_on_it(
    seven_minutes: tuple[Session, Outcome],
) -> None:
    session, _ = seven_minutes
    assert session.machine.started["control"] == 0


def test_numbers_are_captured_once(seven_minutes: tuple[Session, Outcome]) -> None:
    session, _ = seven_minutes
    # Of three trials, first steps and a reference of each side that has none yet: the first, in TF32, has a reference
    # in its number format besides, and what is begun early to see whether it repeats is not needed twice.
    assert session.machine.started["gates"] == 5 + 4 + 2
    assert session.machine.started["trajectories"] == 3 * LEAST_SEEDS


def test_what_was_not_tried_is_told_with_what_it_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows(monkeypatch)
    outcome = Session(tmp_path, 200).run()
    left = {one.fixer: one for one in outcome.verdicts if one.decision is Decision.NOT_TRIED}
    assert left.keys() == {"pad-vocabulary", "compile-model", "loader-workers", "loader-pin"}
    assert left["pad-vocabulary"].predicted_ns == 7_600_000
    assert "the budget leaves" in left["pad-vocabulary"].summary
    said = compose.summary(outcome)
    assert "no time for pad-vocabulary, loader-workers, loader-pin and 1 more, predicted to save" in said


def test_a_longer_budget_asks_which_of_them_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows(monkeypatch)
    session = Session(tmp_path, 510)
    outcome = session.run()
    assert outcome.final is not None
    assert outcome.final.original_ns / outcome.final.patched_ns > 10, table(session.machine)
    assert session.machine.started["left-out"] > 0


def test_ten_minutes_keep_first_what_needs_neither_compiling_nor_trajectories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others follow on top of it, and the program gets as fast as if all had been tried at once."""
    windows(monkeypatch)
    session = Session(tmp_path, 600)
    outcome = session.run()
    first = next(one for one in session.events if isinstance(one, PatchAccepted))
    assert set(first.fixers).isdisjoint({"compile-model", "autocast-bf16"})
    assert {"allow-tf32", "use-sdpa"} <= set(first.fixers)
    assert outcome.final is not None
    assert outcome.final.original_ns / outcome.final.patched_ns > 10, table(session.machine)


def slow_starts(folder: Path, budget_s: float) -> Session:
    """By a later recording of the same program: processes take longer to start, and fewer fit side by side."""
    machine = Machine(
        step_ms,
        start_s=16,
        compile_s=lambda text: 23 if "compile()" in text else 0,
        peak_gib=lambda text: 40 if "attention = 'slow'" in text else 19,
        trace_s=3.5,
    )
    return Session(folder, budget_s, machine, watched_s=30.4)


FORESEEN = StepWithout(
    77_000_000,
    tuple(
        replace(one, recoverable_ns=round(ms * 1e6), share=ms / 77, confidence=Confidence.HINT)
        for one, ms in ((LATER[1], 5.2), (LATER[2], 0.42))
    ),
)
"""What the replay of that recording foresees once all that is found has been treated."""


@pytest.mark.parametrize(
    ("minutes", "foresees", "times"),
    [(4, True, 8), (5, False, 7), (6, True, 10), (7, False, 10), (10, False, 10), (10, True, 10)],
)
def test_minutes_buy_what_promises_most_first(
    minutes: int, foresees: bool, times: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With foresight seven minutes do what otherwise takes ten: what comes to light rides along in the first trial."""
    windows(monkeypatch)
    if foresees:
        monkeypatch.setattr(greedy_search, "step_without", lambda *_: FORESEEN)
    session = slow_starts(tmp_path, 60 * minutes)
    outcome = session.run()
    assert outcome.final is not None, table(session.machine)
    assert outcome.final.original_ns / outcome.final.patched_ns > times, table(session.machine)
    assert session.machine.now_ns / NS_PER_S < session.budget_s - session.watched_s, table(session.machine)
    assert session.machine.alive == 0


@pytest.mark.parametrize(("slow", "foresees"), [(False, False), (False, True), (True, False), (True, True)])
def test_what_a_first_common_trial_will_take_is_known_before(
    *, slow: bool, foresees: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No less than it takes, or it would end without its numbers; and not much more, or it would never begin."""
    windows(monkeypatch)
    if foresees:
        monkeypatch.setattr(greedy_search, "step_without", lambda *_: FORESEEN)
    session = slow_starts(tmp_path, 600) if slow else Session(tmp_path, 600)
    told: dict[tuple[str, Gate, bool], int] = {}
    took: dict[tuple[str, Gate, bool], int] = {}

    def part(fixer: Fixer) -> tuple[str, Gate, bool]:
        return fixer.name, fixer.gate, fixer.compiles

    estimated, tried = Bench.trial_ns, Bench.attempt

    def estimate(bench: Bench, plan: Plan, *, at_best: bool = False) -> int:
        found_ns = estimated(bench, plan, at_best=at_best)
        return found_ns if at_best else told.setdefault(part(plan.fixer), found_ns)

    def attempt(bench: Bench, fixer: Fixer, *given: Any, **more: Any) -> Trial:
        began_ns = session.machine.now_ns
        trial = tried(bench, fixer, *given, **more)
        took.setdefault(part(fixer), session.machine.now_ns - began_ns)
        return trial

    monkeypatch.setattr(Bench, "trial_ns", estimate)
    monkeypatch.setattr(Bench, "attempt", attempt)
    session.run()
    first = next(one for one in took if one[0] == TOGETHER)
    assert took[first] < told[first] < 1.6 * took[first]


def test_a_budget_that_is_used_to_its_end_has_its_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both programs start at once and have the same time for it, and the numbers leave them that."""
    windows(monkeypatch)
    monkeypatch.setattr(greedy_search, "step_without", lambda *_: FORESEEN)
    session = slow_starts(tmp_path, 220)
    outcome = session.run()
    assert outcome.final is not None, table(session.machine)
    assert outcome.final.runs == 1
    assert outcome.final.original_ns / outcome.final.patched_ns > 8, table(session.machine)
    assert session.machine.now_ns / NS_PER_S < session.budget_s - session.watched_s, table(session.machine)


def test_a_look_at_the_whole_is_not_kept_time_for_where_it_has_been_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes no bit leaves the numbers of the whole as they were: two captures, and no trajectory more."""
    windows(monkeypatch)
    windows_of = iter([LATER[0], LATER[2], LATER[2], LATER[2]])

    def look(*_: object) -> Review:
        seen = next(windows_of)
        return Review(tuple(Candidate(seen, BY_NAME[name]) for name in seen.fixers))

    monkeypatch.setattr(greedy_search, "review", look)
    machine = Machine(
        lambda text: step_ms(text) - 4 * ("# workers" in text),
        start_s=10.3,
        compile_s=lambda text: 19 if "compile()" in text else 0,
        peak_gib=lambda text: 37 if "attention = 'slow'" in text else 24,
    )
    session = Session(tmp_path, 420, machine)
    outcome = session.run()
    kept = {one.fixer: one for one in outcome.verdicts if one.decision is Decision.KEPT}
    assert "loader-workers" in kept, table(machine)
    assert outcome.final is not None
    assert outcome.final.gate is not None
    assert outcome.final.gate.gate is Gate.TRAINING
    assert outcome.final.gate.passed
    assert "equals bit for bit" in outcome.final.gate.detail
    assert machine.steps["trajectories"] == 2 * LEAST_SEEDS * LEAST_STEPS


def test_a_control_is_taken_where_a_verdict_hangs_on_it_and_as_fine_as_that_needs(tmp_path: Path) -> None:
    """Two processes of one program differ by some percent: what saves little must be told from that."""
    saving = {"a": 0.0, "b": 0.6}
    machine = Machine(lambda text: 20 * (1 - next(saving[key] for key in saving if f"# {key}" in text)), noise=0.02)
    (tmp_path / "train.py").write_text("# a\n")
    program = Program.parse(["train.py"], cwd=tmp_path)
    told: list[AAControl] = []
    deadline = Deadline(None, machine.clock)
    with (
        simulated(machine),
        Bench(program, tmp_path / "trials", Schedule(), deadline, on_control=told.append) as bench,
    ):
        original = bench.copy({}, "original")
        bench.prepare(original)
        faster = bench.copy({"train.py": "# b\n"}, "faster")
        large = bench.attempt(FIXERS[6], original, faster).verdict
        assert (large.decision, large.pairs, large.generations) == (Decision.KEPT, LEAST_PAIRS, 1)
        saving["b"] = 0.0
        assert bench.attempt(FIXERS[6], original, faster).verdict.decision is Decision.NO_CHANGE
        assert told == []  # whatever one would say
        saving["b"] = 0.045
        small = bench.attempt(FIXERS[6], original, faster).verdict
        assert small.saving is not None
        assert LEAST_SAVING < small.saving.low < ASSUMED
        (coarse,) = told
        assert small.resolution == coarse.resolution < small.saving.low
        assert small.decision is Decision.KEPT
        assert coarse.pairs < Schedule().pairs
    assert machine.alive == 0
