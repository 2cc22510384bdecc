"""A stage for compositions: a bench whose outcomes are made up, and little fixers for a source of four lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.compose import WITHOUT_ASKING, GreedySearch, Outcome
from diagnose.compose.stack.run_context import knowledge
from diagnose.fixer import Answer, Edits, Fixer, Request
from diagnose.model import (
    TOGETHER,
    Accounting,
    Confidence,
    Decision,
    Diagnosis,
    Finding,
    Gate,
    GateAnswer,
    GateCheck,
    GateResult,
    Interval,
    Place,
    Severity,
    Steps,
    Verdict,
)
from diagnose.plugins import Catalogue
from diagnose.program import Program
from diagnose.session import AnyEvent
from diagnose.trace import Trace
from diagnose.trial.ab.arm_protocol import OnPair
from diagnose.trial.ab.knob_search import OnSetting
from diagnose.trial.bench import Bench, Trial
from diagnose.trial.planning.estimates import Plan
from diagnose.trial.planning.numerics_check import PartialStack
from diagnose.trial.process.oom_progress import OomProgress
from diagnose.trial.schedule import Deadline, Schedule
from diagnose.trial.standalone import StandaloneRun
from diagnose.verdict import Pair, Ruling

SOURCE = "import torch\nloader = 1\nloss = 2\nmodel = 3\n"


@dataclass
class FakeBench(Bench):
    """Copies are remembered as texts; what an attempt decides is looked up by the fixer's name."""

    program: Program
    decisions: Mapping[str, Decision]
    attempts: list[tuple[str, str, str]] = field(default_factory=list)
    """Fixer, text of the baseline, text of the patched program."""
    copies: dict[Path, str] = field(default_factory=dict)
    best_setting: int = 0
    scales: list[bool] = field(default_factory=list)
    """Per choice between settings, whether they are on a scale."""
    saving: Interval | None = None
    """Of every attempt."""
    peak_bytes: tuple[int, int] | None = None
    """Of every attempt."""
    by_text: Mapping[str, Decision] = field(default_factory=dict)
    """What an attempt decides where the patched program holds a text."""
    trial_takes_ns: int = 0
    """For each setting."""
    training_takes_ns: int = 0
    """More, where a fix changes the training."""
    compiling_takes_ns: int = 0
    """More, where a fix brings a compiler."""
    check_takes_ns: int = 0
    final_takes_ns: int = 0
    numbers_take_ns: int = 0
    """Of a whole that is not held, before the last runs."""
    on_check: Callable[[], None] = lambda: None
    """Called when a leave-one-out check runs."""
    held_against: list[str] = field(default_factory=list)
    """Per attempt, the text of the program whose numbers the patched one was held against."""
    promised: list[float] = field(default_factory=list)
    halfway: list[str | None] = field(default_factory=list)
    """Per attempt, the text of the program with all but what changes the training."""
    left_out: Mapping[str, Decision] = field(default_factory=dict)
    """What the leave-one-out check of a fixer finds; `kept` is the rest."""
    checks: list[tuple[str, str, str]] = field(default_factory=list)
    """Fixer, text without it, text of the whole stack."""
    shown: list[GateResult | None] = field(default_factory=list)
    """Per check, what was known of the numbers."""
    alone_by_text: Mapping[str, Decision] = field(default_factory=dict)
    """What becomes of a program by itself where it holds a text; others run."""
    reached_by_text: Mapping[str, OomProgress] = field(default_factory=dict)
    """How far a program that dies by itself comes where it holds a text."""
    ran_alone: list[str] = field(default_factory=list)
    """Per program that ran by itself, its text."""
    alone_steps: list[int] = field(default_factory=list)
    """How many steps each was to take at least."""
    most_steps_alone: int = 1_000_000
    """For which there is time."""
    gate_passes: bool | None = True
    gate_by_text: Mapping[str, bool | None] = field(default_factory=dict)
    """What a look at the numbers finds where the patched program holds a text."""
    sweep_fails: bool = False
    """The setting that is in place does not run in a choice between settings."""
    gates: list[tuple[Gate, str, str, str | None]] = field(default_factory=list)
    """Gate, text of the original, text of the patched program, declared format."""
    owes_whole_runs: bool = False
    whole_answer: GateAnswer = GateAnswer.PASSED
    ran_whole: list[tuple[Gate, str]] = field(default_factory=list)
    """Gate and text of each program that was run whole by itself."""

    def go_on(self) -> None:
        """Nobody leaves."""

    # ruff: noqa: ARG002 - the names are those of `Bench`
    def copy(self, texts: Mapping[str, str], name: str) -> Program:
        root = Path("/copies") / name
        self.copies[root] = texts.get(str(self.program.entry), SOURCE)
        return Program(self.program.words, "script", root / "train.py", root, root)

    def prepare(self, original: Program) -> None:
        assert self.copies[original.root] == SOURCE

    def choose(self, candidates: Sequence[Program], on_try: OnSetting, *, scale: bool = False) -> list[int]:
        self.scales.append(scale)
        if self.sweep_fails:
            on_try(0, 1, None)
            return [1]
        for number, _ in enumerate(candidates[1:], 1):
            on_try(number, 0, Interval(0.1, 0.1, 0.1))
        return [self.best_setting, *(at for at in range(len(candidates)) if at != self.best_setting)]

    def attempt(
        self,
        fixer: Fixer,
        original: Program,
        patched: Program,
        on_pair: OnPair | None = None,
        numbers: Program | None = None,
        halfway: PartialStack | None = None,
        promised: float = 0.0,
        on_sure: Callable[[Verdict], None] = lambda _verdict: None,
        *,
        may_wait: bool = False,
    ) -> Trial:
        self.attempts.append((fixer.name, self.copies[original.root], self.copies[patched.root]))
        self.held_against.append(self.copies[(numbers or original).root])
        self.promised.append(promised)
        self.halfway.append(self.copies[halfway.program.root] if halfway else None)
        if on_pair is not None:
            on_pair(0, Pair(0, 2e7, 1e7), Interval(0.5, 0.4, 0.6))
        traces = [Path(f"after-{fixer.name}")]
        decided = next((self.by_text[key] for key in self.by_text if key in self.copies[patched.root]), None)
        if fixer.name == TOGETHER:
            decided = decided or self.decisions.get(TOGETHER, Decision.NO_CHANGE)
        decided = decided or self.decisions[fixer.name]
        gate = GateResult(fixer.gate, True, "as gated")
        told = Verdict(fixer.name, decided, "as told", saving=self.saving, saving_ns=1, gate=gate)
        return Trial(replace(told, peak_memory_bytes=self.peak_bytes), traces)

    def leave_out(
        self,
        fixer: Fixer,
        without: Program,
        stack: Program,
        on_pair: OnPair | None = None,
        shown: GateResult | None = None,
    ) -> Trial:
        self.on_check()
        self.checks.append((fixer.name, self.copies[without.root], self.copies[stack.root]))
        self.shown.append(shown)
        if on_pair is not None:
            on_pair(0, Pair(0, 2e7, 2e7), Interval(0.0, -0.1, 0.1))
        found = self.left_out.get(fixer.name, Decision.KEPT)
        return Trial(Verdict(fixer.name, found, "as checked", saving=Interval(0.001, -0.01, 0.01), saving_ns=2))

    def gate(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
        loading: bool = False,
    ) -> GateResult:
        self.gates.append((gate, self.copies[original.root], self.copies[patched.root], rounds_to))
        text = self.copies[patched.root]
        passes = next((self.gate_by_text[key] for key in self.gate_by_text if key in text), self.gate_passes)
        return GateResult(gate, passes, "as gated")

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        self.ran_whole.append((gate, self.copies[patched.root]))
        return (GateCheck("whole run", self.whole_answer, "as run"),)

    def run_alone(self, program: Program, name: str, least_steps: int = 0) -> StandaloneRun:
        text = self.copies[program.root]
        self.ran_alone.append(text)
        self.alone_steps.append(least_steps)
        dies = next((self.alone_by_text[key] for key in self.alone_by_text if key in text), None)
        if dies is not None:
            came = next((self.reached_by_text[key] for key in self.reached_by_text if key in text), OomProgress())
            return StandaloneRun(failure=Ruling(dies, "as it ended"), reached=came)
        return StandaloneRun(12_000_000, 3 << 30, min(max(15, least_steps), self.most_steps_alone))

    def trial_ns(self, plan: Plan, *, at_best: bool = False) -> int:
        more_ns = self.training_takes_ns if plan.fixer.gate is Gate.TRAINING else 0
        more_ns += self.compiling_takes_ns if plan.fixer.brings_compiler else 0
        return plan.settings * self.trial_takes_ns + more_ns

    def least_ns(self, _plan: Plan) -> int:
        return 0

    def check_ns(self) -> int:
        return self.check_takes_ns

    def final_ns(self, *, held: bool = False, runs: int | None = None, rerun: bool = False) -> int:
        return self.final_takes_ns + (0 if held else self.numbers_take_ns)

    @property
    def final_steps(self) -> int:
        return 50

    def steps_alone(self, programs: Sequence[tuple[Program, str]], steps: int) -> list[int | None]:
        return [20_000_000 if self.copies[program.root] == SOURCE else 10_000_000 for program, _ in programs]


def replacing(old: str, new: str) -> Callable[[Request], Answer]:
    def rewrite(request: Request) -> Answer:
        (path,) = request.sources
        knobs = "".join(str(value) for value in request.setting.values())
        return Edits({path: request.sources[path].replace(old, new + knobs)}, f"{old} becomes {new}{knobs}")

    return rewrite


def fixer(name: str, rewrite: Callable[[Request], Answer], gate: Gate = Gate.BITWISE, **more: object) -> Fixer:
    return Fixer(name, rewrite, gate, "compute", **more)  # type: ignore[arg-type]


def finding(rule: str, milliseconds: int, *fixers: str, line: int = 3) -> Finding:
    place = Place("train.py", line, code=SOURCE.splitlines()[line - 1])
    share = milliseconds / 20
    return Finding(
        rule, Severity.HIGH, 0, milliseconds * 10**6, share, Confidence.MEASURED, rule, where=(place,), fixers=fixers
    )


@dataclass
class Stage:
    """Runs a composition and keeps what was told."""

    folder: Path
    fixers: Sequence[Fixer]
    findings: Sequence[Finding]
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    budget: Deadline = field(default_factory=Deadline)
    allow: frozenset[Gate] = WITHOUT_ASKING
    events: list[AnyEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text(SOURCE)
        self.program = Program.parse(["train.py"], cwd=self.folder)
        self.bench = FakeBench(self.program, self.decisions)

    def run(self) -> Outcome:
        steps, found = Steps(4, 20_000_000), tuple(self.findings)
        diagnosis = Diagnosis(1, (), 1, None, steps, Accounting(), found)
        known = knowledge(self.program, diagnosis, [Trace("run")])
        catalogue = Catalogue({}, {one.name: one for one in self.fixers})
        return GreedySearch(
            self.program,
            diagnosis,
            known,
            catalogue,
            self.events.append,
            self.bench,
            Schedule(),
            self.budget,
            self.allow,
        ).run()


LOADER = fixer("faster-loader", replacing("loader = 1", "loader = 10"))
ITEM = fixer("no-item", replacing("loss = 2", "loss = 20"))
MODEL = fixer("narrow-model", replacing("model = 3", "model = 30"), Gate.ROUNDING, rounds_to="tf32")
TORCH_AGAIN = fixer("torch-again", replacing("import torch\n", "import torch  # again\n"))
ALL = SOURCE.replace("= 1", "= 10").replace("= 2", "= 20").replace("= 3", "= 30")


def together(folder: Path, *fixers: Fixer, decisions: Mapping[str, Decision] | None = None, **more: object) -> Stage:
    """A finding for each fixer, in falling weight; all together are kept, unless said otherwise."""
    findings = [finding(f"rule {one.name}", 9 - at, one.name) for at, one in enumerate(fixers)]
    decided = {TOGETHER: Decision.KEPT, **{one.name: Decision.KEPT for one in fixers}, **(decisions or {})}
    return Stage(folder, fixers, findings, decided, **more)  # type: ignore[arg-type]


def kept_text(outcome: Outcome) -> str:
    assert outcome.patch is not None
    return (outcome.patch.changes[0].after or b"").decode()
