"""Looks at numbers: what a patched program's are worth, told as a verdict, and what the look took."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from diagnose.fixer import Fixer
from diagnose.model import Decision, Gate, GateAnswer, GateCheck, GateResult, Verdict
from diagnose.program import Program
from diagnose.trial.ab.result import Comparison
from diagnose.trial.decision import explained, ruled, settled_by_time
from diagnose.trial.gates.capture_plan import Part
from diagnose.trial.gates.gate import Gatekeeper
from diagnose.trial.planning.cost_model import CostModel
from diagnose.trial.process.capacity import at_once
from diagnose.trial.schedule import Deadline
from diagnose.trial.whole_run.gate import DATA_ORDER, NO_TIME, WHOLE, WholeRunGate
from diagnose.trial.whole_run.runs import Runs
from diagnose.units import format_ns

MOST_SIDE_BY_SIDE = 4
"""Whole runs at the same time."""
_MOST_OF_REST = 4
"""Whole runs of one fix may take one part in so many of a budget's rest, where they can wait for those of all kept
fixes at once. Chosen, not measured."""
PUT_OFF = "left to the end, for all kept fixes together"
"""Said of whole runs that were not made; replaced once they were."""


@dataclass(frozen=True)
class PartialStack:
    """A program with a part of some fixes in it: all but those that change the training."""

    program: Program
    fixer: Fixer
    """Stands for that part: its promise is held against the original's numbers."""

    @property
    def part(self) -> Part:
        """The part of the stack whose numbers are checked."""
        return Part(self.program, self.fixer.gate, self.fixer.rounds_to)


@dataclass
class NumericsChecks:
    """The numerics checks of one bench."""

    gatekeeper: Gatekeeper
    costs: CostModel
    on_phase: Callable[[str, str], None]
    """Told what is being done now, and a detail of it."""
    whole: WholeRunGate | None = None
    """Looks at what programs do from start to end, where their numbers hold."""
    whole_runs_end: Deadline | None = None
    """The time by which whole runs end, where that is not the end of the numerics check."""
    early: int = 0
    """Captures that were begun beside a duel since the last look."""
    early_ns: int = 0
    """What was waited for them."""

    def judged(
        self,
        verdict: Verdict,
        fixer: Fixer,
        found: Comparison,
        original: Program,
        patched: Program,
        halfway: PartialStack | None,
        on_sure: Callable[[Verdict], None] = lambda _verdict: None,
        *,
        may_wait: bool = False,
    ) -> Verdict:
        """The verdict on a trial: by its times and its mechanism, else by the numbers too, in two parts where there is
        one halfway.

        `on_sure` is told as soon as nothing but whole runs stands between a fix and its keep. `may_wait`: those may
        wait for the whole runs of all kept fixes, where time is short.
        """
        early = settled_by_time(verdict, found)
        if early is not None:
            return replace(verdict, decision=early.decision, summary=early.summary)
        verdict = explained(verdict, fixer, found)
        if verdict.decision is Decision.UNEXPLAINED:
            return verdict
        whole = (fixer, original, patched)
        parts, unheld = [whole], None
        if halfway is not None:
            self.on_phase(f"capturing first steps and losses of {fixer.name}", fixer.gate.value)
            with self._timed(fixer.gate):
                unheld = self.gatekeeper.foresee(original, halfway.part, patched, fixer.rounds_to)
            parts = [(halfway.fixer, original, halfway.program), (fixer, halfway.program, patched)]
        answers: list[GateResult] = []
        for part, before, after in [whole] if unheld else parts:
            self.on_phase(f"checking the numbers of {part.name}", part.gate.value)
            answers.append(self.numbers(part.gate, before, after, None if unheld else part.rounds_to))
            if answers[-1].passed is not True:
                return ruled(verdict, found, answers[-1])
        if unheld:  # what follows runs the part whole, and nothing else
            (trained,) = answers
            said = f"{trained.detail}; its first steps were not compared: {unheld}"
            answers, parts = [replace(trained, detail=said)], parts[:1]
        sure = ruled(verdict, found, _joined(answers))
        if sure.decision is not Decision.KEPT:
            return sure
        on_sure(sure)
        if may_wait and fixer.gate is not Gate.TRAINING and self._takes_most_of_rest():
            self.costs.owes_whole_runs = True
            put_off = GateCheck(WHOLE, GateAnswer.UNVERIFIED, PUT_OFF)
            return ruled(verdict, found, with_checks(_joined(answers), (put_off,)))
        for place, (part, before, after) in enumerate(parts):
            gate = _of_whole_runs(part.gate, answers[place])
            checks = self.whole_runs(gate, before, after, part.rounds_to, loading=part.changes_loading)
            answers[place] = with_checks(answers[place], checks)
            if answers[place].passed is not True:
                return ruled(verdict, found, answers[place])
        return ruled(verdict, found, _joined(answers))

    def check(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
        loading: bool = False,
    ) -> GateResult:
        """Whether a patched program keeps its promise: first its numbers, then what it does from start to end.

        `asked` is that of `Gatekeeper.check`; `loading`: a fix changes how data is loaded.
        """
        answer = self.numbers(gate, original, patched, rounds_to, asked=asked)
        if not answer.passed:
            return answer
        if gate is not Gate.TRAINING:
            self.costs.owes_whole_runs = False
        compared = _of_whole_runs(gate, answer)
        return with_checks(answer, self.whole_runs(compared, original, patched, rounds_to, loading=loading))

    def numbers(
        self,
        gate: Gate,
        original: Program,
        patched: Program,
        rounds_to: str | None = None,
        *,
        asked: bool = True,
    ) -> GateResult:
        """Whether its numbers hold: those of the first steps, or for the training gate losses over more of them."""
        with self._timed(gate):
            return self.gatekeeper.check(gate, original, patched, rounds_to, asked=asked)

    def whole_runs(
        self, gate: Gate, original: Program, patched: Program, rounds_to: str | None = None, *, loading: bool = False
    ) -> tuple[GateCheck, ...]:
        """Whether it does from start to end what the original does; nothing for a fix that changes the training."""
        if gate is Gate.TRAINING or self.whole is None:
            return ()
        self.whole.runs.deadline = self.whole_runs_end or self.gatekeeper.deadline
        left_ns, needed_ns = self.whole.runs.deadline.left_ns, self.costs.next_whole_runs_ns
        known = self.whole.knows(gate, original, patched, loading=loading)
        if left_ns is not None and left_ns < needed_ns and not known:
            part = self.whole.known_in_part(gate, original, patched, loading=loading)
            return part or (GateCheck(WHOLE, GateAnswer.UNVERIFIED, f"{NO_TIME} (about {format_ns(needed_ns)})"),)
        began_ns = time.monotonic_ns()
        self._tell_of_whole_runs(self.whole.runs)
        self.whole.runs.side_by_side = at_once(self.gatekeeper.memory, MOST_SIDE_BY_SIDE)
        checks = self.whole.check(gate, original, patched, rounds_to, loading=loading)
        self.costs.saw_whole_runs(time.monotonic_ns() - began_ns)
        return checks

    def _tell_of_whole_runs(self, runs: Runs) -> None:
        """Whole runs take minutes: each that ends is a sign of life."""
        ended = itertools.count(1)
        phase, what = "comparing whole runs", "output, files and exit"
        self.on_phase(phase, what)

        def tell() -> None:
            count = next(ended)
            self.on_phase(phase, f"{what}, {count} run{'' if count == 1 else 's'} done")

        runs.on_end = tell

    def _takes_most_of_rest(self) -> bool:
        """Whether the next whole runs would leave other fixes too little of a budget."""
        left_ns = self.gatekeeper.deadline.left_ns
        if left_ns is None or self.whole is None:
            return False
        return _MOST_OF_REST * self.costs.next_whole_runs_ns > left_ns

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """While a duel goes on, beside whose start captures may be begun."""
        before = self.gatekeeper.started, self.gatekeeper.waited_ns
        yield
        self.early += self.gatekeeper.started - before[0]
        self.early_ns += self.gatekeeper.waited_ns - before[1]

    @contextlib.contextmanager
    def _timed(self, gate: Gate) -> Iterator[None]:
        """Learn what a look at the numbers takes, with what was captured of them early, beside its trial's start."""
        began_ns, before = time.monotonic_ns(), self.gatekeeper.started - self.early
        yield
        more_ns = self.early_ns + self.costs.first_step_after_ns if self.early else 0
        took_ns = time.monotonic_ns() - began_ns + more_ns
        self.costs.saw_gate(gate, took_ns, self.gatekeeper.started - before)
        self.early = self.early_ns = 0


def _of_whole_runs(promise: Gate, answer: GateResult) -> Gate:
    """Return how whole runs are compared: as the numbers were, but up to rounding where the training stood in for a
    reference that could not be made."""
    stood_in = answer.gate is Gate.TRAINING and promise is not Gate.TRAINING
    return Gate.ROUNDING if stood_in else answer.gate


def _joined(answers: Sequence[GateResult]) -> GateResult:
    """The last answer, with what was found of the part without what changes the training."""
    *parts, whole = answers
    said = [f"without what changes the training, {part.detail}" for part in parts]
    checks = tuple(check for answer in answers for check in answer.checks)
    return replace(whole, detail="; ".join([whole.detail, *said]), checks=checks)


def with_checks(answer: GateResult, checks: Sequence[GateCheck]) -> GateResult:
    """A gate's answer with what whole runs showed: one that differs makes it a refusal."""
    refused = next((check for check in checks if check.answer is GateAnswer.REFUSED), None)
    if refused is not None:
        when = {WHOLE: "in a whole run ", DATA_ORDER: ""}.get(refused.name, f"at an {refused.name} in mid-run ")
        return replace(answer, passed=False, detail=f"{when}{refused.detail}", checks=tuple(checks))
    said = [f"{check.name}: {check.detail}" for check in checks]
    return replace(answer, detail="; ".join([answer.detail, *said]), checks=tuple(checks))
